"""Who is in which group."""

from minivllm.distributed.groups import ALONE, Layout, Place


def test_eight_ranks_of_two_by_four():
    layout = Layout(tensor_size=2, pipeline_size=4)
    assert layout.tensor_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.pipeline_groups() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_places_agree_with_the_groups_and_fill_machine_by_machine():
    layout = Layout(tensor_size=2, pipeline_size=4, num_machines=2)
    places = [layout.place(rank) for rank in range(layout.world_size)]
    for group, stage in zip(layout.tensor_groups(), range(4), strict=True):
        assert [(places[rank].tensor_rank, places[rank].pipeline_rank) for rank in group] == [(0, stage), (1, stage)]
    for share, group in enumerate(layout.pipeline_groups()):
        assert [(places[rank].tensor_rank, places[rank].pipeline_rank) for rank in group] == [
            (share, stage) for stage in range(4)
        ]
    assert [place.local_rank for place in places] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert places[5] == Place(5, 1, 2, 2, 4, 1, 4)
    assert Layout().place(0) == ALONE
