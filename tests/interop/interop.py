"""Opens what chancery wrote with the reference packages, and the other way round.

Run by `make interop`, which prepares a virtual environment with anet-kllm, torch, transformers and
model-signing. Each check prints one line; the first that fails ends the run.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).resolve().parents[1] / "data" / "tiny-qwen3"
REFERENCE = MODEL.parent / "tiny-qwen3.reference.json"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("chancery", type=Path, help="the chancery binary")
    chancery = arguments.parse_args().chancery.resolve()
    with tempfile.TemporaryDirectory(prefix="chancery-interop-") as folder:
        work = Path(folder)
        key = make_key(work)
        for transform in ("perm", "orth"):
            for lock in ("none", "v1", "v2"):
                ours = work / f"ours-{transform}-{lock}"
                run(chancery, "checkpoint", "seal", MODEL, "-o", ours, "--key", key,
                    "--transform", transform, "--lock", lock)
                reference("verify", ours, "--base", MODEL, "--key", key, "--ulps", ulps(transform))
                say(f"the reference verifies our {transform} seal with lock {lock}")
        for transform in ("perm", "orth"):
            theirs = work / f"theirs-{transform}"
            reference("seal", MODEL, "-o", theirs, "--key", key, "--transform", transform)
            run(chancery, "checkpoint", "verify", theirs, "--base", MODEL, "--key", key,
                "--ulps", ulps(transform))
            say(f"chancery verifies the reference's {transform} seal")
        check_generation(chancery, work, key)
    say("all interoperate")


def make_key(work: Path) -> Path:
    """A fresh key in an open key file, written by the reference."""
    from kllm.keyed import keys

    path = work / "model.key"
    keys.save_open(keys.generate(), path)
    return path


def check_generation(chancery: Path, work: Path, key: Path) -> None:
    """transformers loads our perm seal, unlocked, and writes the original's text."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    unlocked = work / "unlocked"
    run(chancery, "checkpoint", "unlock", work / "ours-perm-v2", "-o", unlocked, "--key", key)
    private = work / "tokenizer"
    run(chancery, "blob", "extract", unlocked / "trusted.kllm", "-o", private, "--key", key)
    for name in ("tokenizer_config.json", "config.json"):
        shutil.copy(unlocked / name, private / name)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(private)
    model = AutoModelForCausalLM.from_pretrained(unlocked, dtype=torch.float32)
    # The reference's continuations go on past end tokens.
    model.generation_config.eos_token_id = None
    cases = json.loads(REFERENCE.read_text())["prompts"]
    for case in cases:
        tokens = tokenizer(case["text"], return_tensors="pt", add_special_tokens=False)
        count = len(case["greedy_ids"])
        output = model.generate(**tokens, max_new_tokens=count, do_sample=False)
        text = tokenizer.decode(output[0][tokens["input_ids"].shape[1]:])
        if text != case["greedy_text"]:
            sys.exit(f"interop: text differs for {case['text']!r}: {text!r}")
    say(f"transformers writes the original's text for {len(cases)} prompts from our perm seal")


def ulps(transform: str) -> str:
    return "0" if transform == "perm" else "1"


def run(*command: object) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"interop: {' '.join(map(str, command))}: {result.stdout}{result.stderr}")


def reference(*arguments: object) -> None:
    run(sys.executable, "-m", "kllm", *arguments)


def say(line: str) -> None:
    print(f"interop: {line}", flush=True)


if __name__ == "__main__":
    main()
