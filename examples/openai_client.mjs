// Ask a running server with the openai npm package: npm install openai && node examples/openai_client.mjs [BASE_URL]
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] ?? "http://localhost:8000/v1", apiKey: "none" });
const model = (await client.models.list()).data[0].id;

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "What is the capital of France?" }],
  max_tokens: 32,
  stream: true,
});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
console.log();
