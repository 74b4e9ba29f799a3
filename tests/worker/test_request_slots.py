"""Slots and block tables follow the plans; the input builder turns both into tensors."""

import numpy as np

from minivllm.config.sections.device import DeviceConfig
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.step import NewSlot, ScheduledSlot, StepPlan
from minivllm.worker.block_tables import BlockTables
from minivllm.worker.devices.cpu import CpuDevice
from minivllm.worker.input_builder import InputBuilder
from minivllm.worker.request_slots import RequestSlots


def new_slot(slot: int, tokens: list[int], blocks: list[int], prompt: int | None = None) -> NewSlot:
    return NewSlot(slot, f"r{slot}", tokens, prompt or len(tokens), 0, blocks, SamplingParams(), [], [])


def test_block_tables_append_and_start_anew():
    tables = BlockTables(3, 4)
    tables.set(1, [7, 3])
    tables.append(1, [9])
    tables.append(1, [])
    tables.set(2, [5])
    assert tables.rows(np.array([2, 1]), 3).tolist() == [[5, 0, 0], [7, 3, 9]]
    tables.set(1, [4])
    tables.append(1, [2])
    assert tables.rows(np.array([1]), 2).tolist() == [[4, 2]]


def test_slots_keep_tokens_until_they_are_given_anew():
    slots = RequestSlots(2, 8, 4)
    slots.apply(StepPlan(0, [], [new_slot(1, [3, 4, 5], [0], prompt=2)], []))
    slots.append(1, 6)
    assert slots.output(1).tolist() == [5, 6]
    slots.apply(StepPlan(1, [1], [new_slot(1, [9], [0])], []))
    assert slots.output(1).tolist() == []
    slots.apply(StepPlan(2, [1, 0], [], []))
    assert slots.requests == {}


def test_tokens_beyond_the_longest_text_are_dropped():
    slots = RequestSlots(1, 4, 4)
    slots.apply(StepPlan(0, [], [new_slot(0, [1, 2, 3], [0])], []))
    for token in (4, 5, 6):
        slots.append(0, token)
    assert slots.output(0).tolist() == [4, 5]


def test_inputs_of_a_mixed_step():
    slots = RequestSlots(4, 32, 4)
    builder = InputBuilder(slots, 4, CpuDevice(DeviceConfig(cpu_threads=1)))
    prompt = list(range(100, 110))
    plan = StepPlan(
        0,
        [],
        [new_slot(2, prompt, [6, 1, 3]), new_slot(0, [50, 51], [9])],
        [ScheduledSlot(2, 5, 3, [], False), ScheduledSlot(0, 2, 0, [8], True)],
    )
    slots.apply(plan)
    inputs = builder.build(plan)
    assert inputs.input_ids.tolist() == [103, 104, 105, 106, 107, 50, 51]
    assert inputs.positions.tolist() == [3, 4, 5, 6, 7, 0, 1]
    assert inputs.attention.query_start.tolist() == [0, 5, 7]
    assert inputs.attention.context_lens.tolist() == [8, 2]
    assert inputs.attention.block_tables.tolist() == [[6, 1], [9, 8]]
    assert inputs.attention.slot_mapping.tolist() == [27, 4, 5, 6, 7, 36, 37]
    assert inputs.sample_rows.tolist() == [6]
    assert inputs.sample_slots.tolist() == [0]
    assert [str(t.dtype) for t in (inputs.input_ids, inputs.attention.query_start, inputs.attention.slot_mapping)] == [
        "torch.int64",
        "torch.int32",
        "torch.int64",
    ]

    slots.append(0, 77)
    plan = StepPlan(1, [], [], [ScheduledSlot(0, 1, 2, [], True), ScheduledSlot(2, 2, 8, [], True)])
    slots.apply(plan)
    inputs = builder.build(plan)
    assert inputs.input_ids.tolist() == [77, 108, 109]
    assert inputs.positions.tolist() == [2, 8, 9]
    assert inputs.attention.slot_mapping.tolist() == [38, 12, 13]
    assert inputs.attention.block_tables.tolist() == [[9, 8, 0], [6, 1, 3]]
    assert inputs.sample_rows.tolist() == [0, 2]
    assert inputs.sample_slots.tolist() == [0, 2]
