from fake_worker import make_request

from minivllm.engine.fanout import divide


def test_one_choice_stays_as_it_is():
    request = make_request("r", [1, 2], seed=5)
    assert divide(request) == [request]


def test_each_choice_has_its_own_seed_and_id():
    children = divide(make_request("r", [1, 2], n=3, temperature=1.0, seed=5, prompt_logprobs=2))
    assert [child.request_id for child in children] == ["r-0", "r-1", "r-2"]
    assert [child.sampling_params.seed for child in children] == [5, 6, 7]
    assert [child.sampling_params.n for child in children] == [1, 1, 1]
    assert [child.sampling_params.prompt_logprobs for child in children] == [2, None, None]


def test_seeds_at_the_borders():
    """The seed -1 means none, and 64 bits are all there are: still every choice has a seed, and another one."""
    for seed in (-2, 2**63 - 2):
        seeds = [child.sampling_params.seed for child in divide(make_request("r", [1], n=4, temperature=1.0, seed=seed))]
        assert None not in seeds and len(set(seeds)) == 4 and seeds[0] == seed
