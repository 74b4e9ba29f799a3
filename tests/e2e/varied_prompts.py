"""36 prompts of 1 to 1,500 tokens: prose, code, digits, emoji, Chinese. Read by `make_reference.py` and the tests."""

STORY = (
    "The lighthouse keeper climbed the hundred and twelve steps every evening before dusk. He carried oil, a clean cloth "
    "and a small brass clock that had belonged to his mother. From the gallery he could see the whole bay: the fishing boats "
    "coming home, the ferry with its single red lamp, and far out the grey line where weather was made. He wrote down what he "
    "saw in a ledger, always in the same order, wind first, then sea, then sky, and last of all the ships by name. "
)
REPORT = (
    "In the third quarter the company shipped 48,210 units, up 7.5% from 44,846 a year earlier. Revenue rose to $12.4 million, "
    "while operating costs fell by 3%. The board attributed the change to lower freight prices and to a new plant in Leipzig. "
)
CODE = (
    "def merge(left: list[int], right: list[int]) -> list[int]:\n    out = []\n    i = j = 0\n"
    "    while i < len(left) and j < len(right):\n        if left[i] <= right[j]:\n            out.append(left[i])\n"
    "            i += 1\n        else:\n            out.append(right[j])\n            j += 1\n"
    "    return out + left[i:] + right[j:]\n\n\n"
)
CHINESE = "北京是中国的首都。上海是中国最大的城市。长江是亚洲最长的河流。"
COUNT = ", ".join(str(n) for n in range(1, 200))

PROMPTS = [
    "The",
    "1",
    "Hello",
    "\n",
    "The capital of France is",
    "Once upon a time there was a",
    "The opposite of hot is",
    "Water boils at",
    "My favourite colour is blue because",
    "In 1969, the first human",
    "def fibonacci(n):\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, age FROM users WHERE",
    '{"name": "Ada", "born": 1815, "field":',
    "for (let i = 0; i < 10; i++) {",
    "1, 2, 3, 4, 5, 6, 7,",
    "3.14159265358979",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "🐢🚀✨",
    "I love pizza 🍕 and",
    "你好,世界",
    CHINESE,
    "Le chat est sur la",
    "Übung macht den Meister, sagte der",
    "A B C D E F G H I J",
    "Monday, Tuesday, Wednesday,",
    STORY,
    REPORT * 2,
    CODE,
    "Explain the following program line by line.\n\n" + CODE * 2,
    COUNT,
    CHINESE * 8,
    STORY * 4,
    REPORT * 8 + "In summary,",
    (CODE + STORY) * 4,
    STORY * 14 + "The end of the story is that",
]
