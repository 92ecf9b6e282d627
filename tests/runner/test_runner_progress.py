"""Each recogniser on lines as the frameworks print them, and how they become at most two events a second."""

from __future__ import annotations

import json
import re
import time

import pytest

LINES = [
    # (recogniser, line, what it finds)
    ("json_line", '{"step": 12, "loss": 2.5}', {"step": 12, "loss": 2.5}),
    (
        "json_line",
        '{"step":5,"total_steps":50,"loss":1.25,"tokens_per_s":1e4,"samples_per_s":8,"learning_rate":3e-4,"epoch":0.5,'
        '"eta_s":90,"grad_norm":0.7,"other":[1]}',
        {
            "step": 5,
            "total_steps": 50,
            "loss": 1.25,
            "tokens_per_s": 10000,
            "samples_per_s": 8,
            "learning_rate": 0.0003,
            "epoch": 0.5,
            "eta_s": 90,
            "grad_norm": 0.7,
        },
    ),
    (
        "json_line",
        '{"global_step": 7, "max_steps": 9, "tokens_per_second": 3, "lr": 0.1}',
        {"step": 7, "total_steps": 9, "tokens_per_s": 3, "learning_rate": 0.1},
    ),
    ("json_line", 'INFO:train:{"iteration": 3, "train_loss": 0.5}', {"step": 3, "loss": 0.5}),
    ("json_line", '{"step": 3, "loss": NaN, "eta_s": Infinity}', {"step": 3}),
    ("json_line", '{"step": 3.0, "loss": true, "lr": null}', {"step": 3}),
    (
        "hf_trainer",
        "{'loss': 2.3091, 'grad_norm': 1.25, 'learning_rate': 4.9e-05, 'epoch': 0.02}",
        {"loss": 2.3091, "grad_norm": 1.25, "learning_rate": 4.9e-05, "epoch": 0.02},
    ),
    (
        "hf_trainer",
        "{'loss': '0.42', 'grad_norm': '1.1', 'learning_rate': '5e-05', 'epoch': '1'}",
        {"loss": 0.42, "grad_norm": 1.1, "learning_rate": 5e-05, "epoch": 1},
    ),
    ("hf_trainer", "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 1.0}", None),  # see below
    (
        "tqdm_bar",
        " 12%|█▏        | 120/1000 [00:10<01:15, 11.62it/s]",
        {"step": 120, "total_steps": 1000, "eta_s": 75},
    ),
    ("tqdm_bar", "  0%|          | 0/1000 [00:00<?, ?it/s]", {"step": 0, "total_steps": 1000}),
    (
        "tqdm_bar",
        "Epoch 3:  50%|█████     | 50/100 [01:00<1:02:03, 1.20s/it, v_num=0, train_loss=0.731]",
        {"epoch": 3, "step": 50, "total_steps": 100, "eta_s": 3723, "loss": 0.731},
    ),
    (
        "tqdm_bar",
        "Training: 100%|██████████| 10/10 [00:05<00:00, 2.0it/s]",
        {"step": 10, "total_steps": 10, "eta_s": 0},
    ),
    (
        "megatron",
        " iteration      100/  500000 | consumed samples:        12800 | elapsed time per iteration (ms): 500.0 | "
        "learning rate: 1.500E-04 | global batch size:   128 | lm loss: 1.234500E+00 | loss scale: 1.0 | "
        "grad norm: 0.987 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        {
            "step": 100,
            "total_steps": 500000,
            "loss": 1.2345,
            "learning_rate": 0.00015,
            "grad_norm": 0.987,
            "eta_s": 249950.0,
            "samples_per_s": 256.0,
        },
    ),
    (
        "torchtitan",
        "[titan] 2025-01-01 00:00:00,000 - root - INFO - step: 10  loss:  8.1234  grad_norm:  1.5021  "
        "memory: 10.00GiB(12.34%)  tps: 1,234  tflops: 12.30  mfu: 4.50%",
        {"step": 10, "loss": 8.1234, "grad_norm": 1.5021, "tokens_per_gpu_s": 1234},
    ),
    (
        "imagenet_example",
        "Epoch: [2][  10/5005]\tTime  0.512 ( 0.9)\tData  0.1 ( 0.2)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.10 (0.20)",
        {"epoch": 2, "step": 10020, "loss": 6.9},
    ),
    ("mnist_example", "Train Epoch: 2 [6000/60000 (10%)]\tLoss: 0.250000", {"epoch": 1.1, "loss": 0.25}),
    ("step_and_loss", "Epoch 1 Step 20 loss=2.5", {"epoch": 1, "step": 20, "loss": 2.5}),
    ("step_and_loss", "iter 100: loss 2.3012, time 123.45ms, mfu 12.3%", {"step": 100, "loss": 2.3012}),
    (
        "step_and_loss",
        "[step 5/100] train_loss: 1.0 lr: 1e-4 grad_norm: 0.5 tokens/s: 12,345",
        {"step": 5, "total_steps": 100, "loss": 1, "learning_rate": 0.0001, "grad_norm": 0.5, "tokens_per_s": 12345},
    ),
    ("step_and_loss", "step 500: train loss 2.1, val loss 2.2", {"step": 500, "loss": 2.1}),
]


def first(module, line):
    for recognise in module.RECOGNISERS:
        found = recognise(line)
        if found:
            return recognise.__name__, found
    return None, None


@pytest.mark.parametrize(("name", "line", "expected"), [case for case in LINES if case[2]])
def test_recogniser(module, name, line, expected):
    assert getattr(module, name)(line) == expected
    assert first(module, line) == (name, expected), "another recogniser claims the line first"


def test_every_recogniser_has_a_line(module):
    assert {recognise.__name__ for recognise in module.RECOGNISERS} == {name for name, _, _ in LINES}


def test_numbers_that_are_not_finite_are_left_out(module):
    found = module.hf_trainer("{'loss': 0.5, 'grad_norm': nan, 'learning_rate': inf, 'epoch': 1.0}")
    assert found == {"loss": 0.5, "epoch": 1.0}
    assert module.json_line('{"step": 1, "loss": 1e999}') == {"step": 1}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "step by step",
        "{'eval_loss': 0.4, 'eval_runtime': 3.2, 'epoch': 1.0}",
        "{'train_runtime': 12.3, 'train_loss': 1.2, 'epoch': 3.0}",
        "step 500: val loss 2.2",
        "Downloading: 12%|█▏| 120/1000 [00:10<01:15, 11.6MB/s]",
        "Map: 100%|██████████| 5000/5000 [00:01<00:00, 4000 examples/s]",
        "Loading checkpoint shards: 50%|█████     | 1/2 [00:01<00:01, 1.0s/it]",
        '{"step": "abc"}',
        '{"step": -4, "loss": 1}',
        '{"step": 1.5, "loss": 1}',
        '{"loss": 1}',
        '{"step": 1',
        "[" * 4000,
        '{"step":' + "[" * 8000 + "}",
        "iteration 5 of something | lm loss",
        "Train Epoch: 1 [0/0 (0%)] Loss: 1",
    ],
)
def test_other_lines_are_no_progress(module, line):
    assert first(module, line) == (None, None)


@pytest.mark.parametrize(
    "filler", ["1", ",", "1,", " ", "step ", "loss ", "|", "[", "12%|", "\x1b[", "\x1b]", "{", "'", "[0"]
)
def test_hostile_lines_cost_little(module, filler):
    line = (filler * 8000)[:8000]
    began = time.process_time()
    first(module, module.RANK_PREFIX.sub("", module.ESCAPES.sub("", line)))
    assert time.process_time() - began < 0.2


def feed(module, *lines, stream="stdout"):
    progress = module.Progress()
    for line in lines:
        progress.feed(stream, line)
    return progress


def test_prefixes_and_colours_are_seen_through(module):
    for line in (
        '0: {"step": 4, "loss": 1.5}\n',
        '[rank0]: {"step": 4, "loss": 1.5}\n',
        "[default0]:step 4 loss 1.5\n",
        "\x1b[32mstep: 4\x1b[0m  \x1b[33mloss: 1.5\x1b[39m\n",
    ):
        assert feed(module, line).take() == [{"step": 4, "loss": 1.5}]


def test_a_line_in_pieces_counts_once_it_is_whole(module):
    progress = feed(module, '{"step": 1, ', '"loss"')
    assert progress.take() == []
    progress.feed("stderr", "other\n")
    progress.feed("stdout", ": 2.5}\n")
    assert progress.take() == [{"step": 1, "loss": 2.5}]


def test_a_megabyte_without_a_newline_is_passed_over(module):
    progress = feed(module, "step loss " * 100_000, "\n", '{"step": 2}\n')
    assert max(len(tail) for tail in progress.tails.values()) < 10_000
    assert progress.take() == [{"step": 2}]


def test_only_the_last_of_a_half_second_is_kept(module):
    progress = feed(module, *[f'{{"step": {i}, "loss": {i}}}\n' for i in range(100)])
    assert progress.take() == [{"step": 99, "loss": 99}]
    progress.feed("stdout", '{"step": 100}\n')
    assert progress.take() == [], "at most two events a second"
    assert progress.take(final=True) == [{"step": 100}], "at the end the last is not lost"


def test_the_trainers_bar_and_its_dictionary_join(module):
    progress = feed(module, " 10%|█         | 100/1000 [00:10<01:30, 10.0it/s]", stream="stderr")
    progress.feed("stderr", "\r")
    progress.feed("stdout", "{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1}\n")
    progress.feed("stderr", " 10%|█         | 101/1000 [00:10<01:30, 10.0it/s]\r")
    expected = {"step": 100, "total_steps": 1000, "eta_s": 90, "loss": 2.5, "learning_rate": 5e-05, "epoch": 0.1}
    assert progress.take() == [expected]
    progress.given_at -= 1
    assert progress.take() == [{"step": 101, "total_steps": 1000, "eta_s": 90}]


def test_an_evaluations_bar_does_not_turn_the_step_back(module):
    progress = feed(module, " 50%|█████     | 500/1000 [00:10<00:10, 50.0it/s]\n")
    progress.feed("stdout", "100%|██████████| 13/13 [00:01<00:00, 9.70it/s]\n")
    assert progress.take()[0]["step"] == 500


def test_bars_do_not_override_what_the_program_prints_as_json(module):
    progress = feed(module, '{"step": 40, "loss": 1.0}\n', "  1%|▏         | 1/100 [00:10<00:10, 1.0it/s]\n")
    assert progress.take() == [{"step": 40, "loss": 1.0}]


def test_a_flood_of_progress_lines_costs_bounded_work(module):
    progress = module.Progress()
    text = "".join(f"step {i} loss 1.0\n" for i in range(100_000))
    began = time.process_time()
    progress.feed("stdout", text)
    assert progress.take() == [{"step": 99_999, "loss": 1.0}]
    assert time.process_time() - began < 1.0


def test_progress_reaches_the_portal(bench, recorder):
    lines = [json.dumps({"step": i, "total_steps": 4, "loss": 4.0 - i}) for i in range(1, 5)]
    code, _, _ = bench.run("sh", "-c", "; sleep 0.6; ".join(f"echo '{line}'" for line in lines))
    assert code == 0
    events = recorder.kind("progress")
    assert events[-1] == {"step": 4, "total_steps": 4, "loss": 0.0}
    steps = [event["step"] for event in events]
    assert steps == sorted(steps)
    assert len(events) <= 5
    assert re.search(r'"step": 1', recorder.text("stdout"))
