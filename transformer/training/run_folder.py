"""The folder of a run: its description, metrics, checkpoints and models.

Made from book/workshop/real-training.md: edit the chapter, not this file.
"""

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from filelock import FileLock, Timeout

from transformer.beyond.text_generator import TextGenerator
from transformer.checks import InvalidValue, require_positive
from transformer.decoding.translator import Translator
from transformer.text.subwords import SubwordTokenizer
from transformer.training.loop import StepMetrics
from transformer.weights.files import (
    read_training_state,
    remove_partial_files,
    write_atomically,
    write_training_state,
)

__all__ = [
    "RunInfo",
    "read_run",
    "read_metrics",
    "load_run",
    "RunFolder",
    "digest_of",
    "learn_subwords",
]


class RunInfo(NamedTuple):
    """What a run was trained on and how, from its `run.json`.

    Attributes:
        data: the folder that the sentences were read from, if they were; of a language
            model, the files of its text.
        languages: the codes of source and target.
        text: "raw" or "tok"; "lines" for a language model.
        model: the fields of the model's config.
        training: those of the TrainingConfig, which is `TrainingConfig(**training)`.
        optimizer: the name of the optimiser's class.
        schedule: the name of the schedule, if it is not the config's.
        validation: a digest of the validation set, by which a change of it is seen.
    """

    data: str | list[str] | None
    languages: tuple[str, str]
    text: str
    model: dict[str, Any]
    training: dict[str, Any]
    optimizer: str
    schedule: str | None
    validation: str

    def fingerprint(self, digest: str) -> str:
        """The same for two runs if one may go on from the other's checkpoints."""
        return json.dumps(_comparable({**self._asdict(), "dataset": digest}))


def read_run(folder: str | os.PathLike[str]) -> RunInfo:
    """The description of the run in a folder.

    Raises:
        ValueError: for a folder without one, or one that is damaged.
    """
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise InvalidValue(f"{folder} is not the folder of a run: it has no run.json")
    found = _read_json(path)
    info = RunInfo(**{name: found.get(name) for name in RunInfo._fields})  # type: ignore[arg-type]
    files = info.data if isinstance(info.data, list) else []
    languages: Any = info.languages
    if not (
        isinstance(info.data, str | list | None)
        and isinstance(languages, list)
        and len(languages) == 2
        and all(isinstance(text, str) for text in (*files, *languages))
        and isinstance(info.text, str)
        and isinstance(info.model, dict)
        and isinstance(info.training, dict)
        and isinstance(info.optimizer, str)
        and isinstance(info.schedule, str | None)
        and isinstance(info.validation, str)
    ):
        raise InvalidValue(f"{path} is damaged: it does not describe a run")
    return info._replace(languages=(languages[0], languages[1]))


def read_metrics(folder: str | os.PathLike[str]) -> list[StepMetrics]:
    """The metrics of each step of a run.

    A line that is damaged is left out, and so are fields that are not StepMetrics'.

    Raises:
        ValueError: for a folder that is not there.
    """
    if not Path(folder).is_dir():
        raise InvalidValue(f"no folder of a run at {folder}")
    return [metrics for metrics, _ in _metrics_lines(Path(folder))]


def _metrics_lines(folder: Path) -> Iterator[tuple[StepMetrics, bytes]]:
    """The metrics of each whole line of a run's, and the line itself."""
    path = folder / "metrics.jsonl"
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        metrics = _step_metrics(line)
        if metrics is not None:
            yield metrics, line


def _metrics_line(metrics: StepMetrics) -> str:
    found = {  # JSON has no NaN
        name: value
        for name, value in metrics._asdict().items()
        if value is not None and math.isfinite(value)
    }
    return json.dumps(found) + "\n"


_WHOLE = ("step", "total_steps", "epoch", "target_tokens")


def _step_metrics(line: bytes) -> StepMetrics | None:
    try:
        whole = json.loads(line)
        found = {name: whole[name] for name in StepMetrics._fields if name in whole}
        metrics = StepMetrics(**found)
    except (RecursionError, TypeError, ValueError):
        return None
    for name, value in found.items():
        kind = int if name in _WHOLE else int | float
        if not isinstance(value, kind) or isinstance(value, bool):
            return None
        if not abs(value) < 2**53 or math.isnan(value):
            return None
    return metrics


def load_run(folder: str | os.PathLike[str], average: int = 0) -> Translator:
    """The translator of a run: the weights with the lowest validation loss.

    With `average`, the mean of the weights that the last so many epochs ended with.

    Raises:
        ValueError: for a folder without a model, too few epochs to average, or epochs
            of different models.
    """
    folder = Path(folder)
    if not average:
        return Translator.load(folder)
    require_positive(average=average)
    paths = [folder / name for name in _own_files(folder, _EPOCH)][-average:]
    if len(paths) < average:
        raise InvalidValue(f"{folder} keeps {len(paths)} epochs, not {average}")
    translator, *others = (Translator.load(path) for path in paths)
    if any(other.model.config != translator.model.config for other in others):
        raise InvalidValue(f"{folder} keeps epochs of different models")
    models = [translator.model, *(other.model for other in others)]
    with torch.no_grad():
        for same in zip(*(model.parameters() for model in models), strict=True):
            same[0].copy_(torch.stack(list(same)).mean(dim=0))
    return translator


_CHECKPOINT = re.compile(r"training-\d{8,}\.pt")
_EPOCH = re.compile(r"epoch-\d{4,}\.safetensors")
_SUBWORDS = "run.subwords.json"
_BEFORE_RUN = re.compile(
    r"\..*|run\.lock|run\.(subwords\.json|json|start\.safetensors)(\.\d+\.part)?"
)


class RunFolder:
    """The files of one run. Nothing else in the folder is ever touched.

    Use `with folder.lock(): folder.open(…)` before the rest. Of two trainings in one
    thread the later has the folder, and the earlier is refused at its next write.
    """

    _holders: ClassVar[dict[Path, "RunFolder"]] = {}  # who in this process writes

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            raise InvalidValue("a run needs the name of a folder, got ''")
        self.path = Path(path)
        self._locked: Path | None = None
        self._description: bytes | None = None  # to be written with the first step

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing here, as long as this one lives.

        Raises:
            ValueError: when one is writing here already, or for a folder that holds
                something else than a run, or that cannot be written to.
        """
        try:
            if self.path.is_dir() and not (self.path / "run.json").is_file():
                for name in sorted(os.listdir(self.path)):
                    if not _BEFORE_RUN.fullmatch(name):
                        raise InvalidValue(
                            f"{self.path} is neither empty nor the folder of a run: "
                            f"it has {name}, but no run.json"
                        )
            self.path.mkdir(parents=True, exist_ok=True)
            # Shared inside a thread, where a notebook may have left a training
            # half-way.
            lock = FileLock(self.path / "run.lock", is_singleton=True)
            lock.acquire(blocking=False)
        except Timeout:
            raise InvalidValue(f"another training is writing to {self.path}") from None
        except OSError as error:
            reason = error.strerror or error
            raise InvalidValue(f"cannot keep a run in {self.path}: {reason}") from None
        self._locked = key = self.path.resolve()
        self._holders[key] = self
        try:
            yield
        finally:
            if self._holders.get(key) is self:
                del self._holders[key]
                self._locked = None
            lock.release()

    def open(self, info: RunInfo, digest: str) -> None:
        """Begin the run described, or go on with it.

        `digest` is the dataset's. A run that kept no model and no checkpoint, or that
        diverged before its first model, makes way for another. A run that goes on is
        described anew with its first step: one that is finished stays as it is.

        Raises:
            ValueError: naming the first difference to the run that is there, or for a
                description that is damaged or not of a run.
        """
        ours = json.loads(json.dumps({**info._asdict(), "dataset": digest}))
        path = self.path / "run.json"
        remove_partial_files(path)
        try:
            theirs = {}
            if path.is_file():
                read_run(self.path)  # refuses a run.json that is not ours
                theirs = _read_json(path)
            difference = _difference(_comparable(theirs), _comparable(ours))
            if theirs and difference:
                if not self._may_begin_again(theirs):
                    raise InvalidValue(f"{self.path} has another run: {difference}")
                self._remove(_CHECKPOINT)
                self._remove(_EPOCH)
                (self.path / "metrics.jsonl").unlink(missing_ok=True)
            if theirs != ours:
                self._description = json.dumps(ours, indent=1).encode()
            if difference:
                self._describe()
        except OSError as error:
            reason = error.strerror or error
            raise InvalidValue(f"cannot keep a run in {self.path}: {reason}") from None

    def _describe(self) -> None:
        if self._description is not None:
            write_atomically(self.path / "run.json", self._description)
            self._description = None

    def _may_begin_again(self, theirs: Mapping[str, Any]) -> bool:
        if (self.path / "model.safetensors").exists():
            return False
        return "diverged" in theirs or not self.checkpoints()

    def diverged(self, step: int) -> None:
        """Note that the run diverged, so that another may begin here."""
        path = self.path / "run.json"
        found = {**_read_json(path), "diverged": step}
        with self._explained():
            write_atomically(path, json.dumps(found, indent=1).encode())

    def checkpoints(self) -> list[Path]:
        """The checkpoints that are there, the newest first."""
        return [self.path / n for n in reversed(_own_files(self.path, _CHECKPOINT))]

    def resume(
        self, load: Callable[[dict[str, Any]], int], report: Callable[[str], None]
    ) -> int:
        """Load the newest checkpoint that is whole; the last step, or 0.

        Raises:
            ValueError: when there are checkpoints, but all are damaged, and when they
                are gone, but not the model that was kept with them.
        """
        reasons = []
        for path in self.checkpoints():
            try:
                step = load(read_training_state(path))
            except ValueError as error:
                reasons.append(f"{path.name}: {error}")
                continue
            for reason in reasons:
                report(f"{reason}; going on from {path.name} instead")
            return step
        if reasons:
            raise InvalidValue(f"no checkpoint can be read: {reasons[0]}")
        # An epoch ends with its checkpoint: later steps mean that there was one.
        later = any(each.epoch > 1 for each in read_metrics(self.path))
        if later and (self.path / "model.safetensors").exists():
            raise InvalidValue(
                f"{self.path} has a model, but no training-*.pt to go on from: "
                "to train anew, choose another folder"
            )
        return 0

    def save_checkpoint(self, step: int, state: Mapping[str, Any]) -> None:
        """Keep the run as it stands, and the checkpoint before this one."""
        with self._explained():
            write_training_state(self.path / f"training-{step:08}.pt", state)
            self._remove(_CHECKPOINT, keep=2)

    def save_best(self, model: Translator | TextGenerator) -> None:
        """Keep the best weights so far, with all it takes to use them."""
        with self._explained():
            model.save(self.path / "model.safetensors")

    def save_epoch(self, epoch: int, translator: Translator, keep: int) -> None:
        """Keep the weights at the end of an epoch, and those of the last few."""
        with self._explained():
            translator.save(self.path / f"epoch-{epoch:04}.safetensors")
            self._remove(_EPOCH, keep)

    def append_metrics(self, metrics: StepMetrics) -> None:
        """Add a line to the metrics."""
        with self._explained():
            self._describe()
            with (self.path / "metrics.jsonl").open("a") as file:
                file.write(_metrics_line(metrics))

    def rewind(self, step: int) -> float:
        """Drop what was written after a step, because it will be taken again.

        Returns the seconds that the run took up to that step.
        """
        lines = [(m, line) for m, line in _metrics_lines(self.path) if m.step <= step]
        with self._explained():
            for name in sorted(os.listdir(self.path)):
                whole = re.sub(r"\.\d+\.part$", "", name)
                if whole in ("run.json", "metrics.jsonl", "model.safetensors") or any(
                    kind.fullmatch(whole) for kind in (_CHECKPOINT, _EPOCH)
                ):
                    remove_partial_files(self.path / whole)
            for path in self.checkpoints():
                if int(path.stem.partition("-")[2]) > step:
                    path.unlink()
            self._remove(_CHECKPOINT, keep=2)  # killed before it came to that
            text = b"".join(line + b"\n" for _, line in lines)
            write_atomically(self.path / "metrics.jsonl", text)
        return max((metrics.seconds for metrics, _ in lines), default=0.0)

    def _remove(self, kind: re.Pattern[str], keep: int = 0) -> None:
        for name in _own_files(self.path, kind)[: -keep or None]:
            (self.path / name).unlink()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Name in one line what a full disk or a read-only folder means."""
        if self._locked and self._holders.get(self._locked) is not self:
            raise InvalidValue(f"another training has taken {self.path} over")
        try:
            yield
        except OSError as error:
            checkpoints = self.checkpoints()
            kept = f"{checkpoints[0].name} is kept" if checkpoints else ""
            raise InvalidValue(
                f"cannot write to {self.path}: {error.strerror or error}; "
                f"{kept or 'no checkpoint is kept yet'}, and the same command goes on "
                "from it once there is room"
            ) from None


def _own_files(folder: Path, kind: re.Pattern[str]) -> list[str]:
    """The names of a run's files of one kind, by their number."""
    names = os.listdir(folder) if folder.is_dir() else []
    numbered = [
        (int(re.sub(r"\D", "", name.rpartition(".")[0])), name)
        for name in names
        if kind.fullmatch(name)
    ]
    return [name for _, name in sorted(numbered)]


def _comparable(description: Mapping[str, Any]) -> dict[str, Any]:
    """What fixes the steps of a run: not where its data lies, nor when it diverged.

    Nor do precision and micro batches, which change a result by rounding alone. How
    long it lasts counts only where the config's learning rate depends on that.
    """
    found = json.loads(json.dumps(description))
    training = found.get("training")
    if isinstance(training, dict):
        if found.get("schedule") is not None:  # which is compared step by step
            for name in ("schedule", "learning_rate", "warmup_steps", "cooldown"):
                training.pop(name, None)
        plain = training.get("schedule", "inverse-sqrt") == "inverse-sqrt"
        if plain and not training.get("cooldown"):  # no rate knows of the last step
            training.pop("epochs", None)
        for name in ("patience", "bf16", "micro_batch_tokens"):
            training.pop(name, None)
    left_out = "data", "diverged", "validation"
    return {n: x for n, x in found.items() if n not in left_out}


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """The first choice in which two runs differ, best one that both name."""
    plain_first = sorted(ours, key=lambda name: isinstance(ours[name], dict))
    for name in sorted(plain_first, key=lambda name: name not in theirs):
        mine = ours[name]
        other = theirs.get(name)
        if isinstance(mine, dict) and isinstance(other, dict):
            inner = _difference(other, mine)
            if inner:
                return inner
        elif other != mine:
            option = _OPTIONS.get(name, name.replace("_", "-"))
            named = f" (--{option})" if option else ""
            return f"its {name} is {other!r:.60}, here {mine!r:.60}{named}"
    return ""


_OPTIONS = {  # of the command line, where they are not called as what they change
    "optimizer": "",
    "dataset": "data",
    "languages": "source and --target",
    "source_vocab_size": "vocab-size",
    "target_vocab_size": "vocab-size",
    "num_encoder_layers": "layers",
    "num_decoder_layers": "layers",
    "num_layers": "layers",
}


def digest_of(data: Any) -> str:
    """A short text that stands for lists of numbers or texts."""
    # Ids of NumPy's and tensors are no numbers of JSON's.
    text = json.dumps(data, default=lambda ids: ids.tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def learn_subwords(
    sentences: Sequence[str],
    vocab_size: int,
    text: str,
    run: str | os.PathLike[str] | None,
    report: Callable[[str], None],
) -> SubwordTokenizer:
    """Subwords learned from sentences, or those that a run's folder keeps of them.

    Raises:
        ValueError: for what `SubwordTokenizer.train` refuses, or a folder that cannot
            be written to.
    """
    asked = json.dumps([list(sentences), vocab_size, text])
    key = hashlib.sha256(asked.encode()).hexdigest()
    path = None if run is None else Path(run) / _SUBWORDS
    if path is not None and path.is_file():
        with contextlib.suppress(KeyError, ValueError):  # damaged: learned anew
            found = _read_json(path)
            if found["key"] == key:
                return SubwordTokenizer.from_json(found["tokenizer"])
            if (path.parent / "run.json").is_file():
                path = None  # that run's, which may refuse what is learned here
    report(f"learning subwords from {len(sentences):,} sentences")
    tokenizer = SubwordTokenizer.train(sentences, vocab_size, text)
    if path is not None:
        kept = json.dumps({"key": key, "tokenizer": tokenizer.to_json()})
        try:
            write_atomically(path, kept.encode())
        except OSError as error:
            reason = error.strerror or error
            raise InvalidValue(f"cannot keep a run in {run}: {reason}") from None
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    """A dictionary from a small file.

    Raises:
        ValueError: for a file that has none.
    """
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValue(f"{path} is damaged: it should have a dictionary")
    return found
