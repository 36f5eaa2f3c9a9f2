"""Weights from a model hub, through the optional package huggingface_hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from slipstream.errors import WeightsError
from slipstream.weights.cache import Fetched, ModelCache
from slipstream.weights.download import Downloader, RemoteFile
from slipstream.weights.layout import INDEX_NAME
from slipstream.weights.local_source import single_weights_file
from slipstream.weights.manifest import compare_checksums
from slipstream.weights.progress import Progress

# What lies beside a drafter's weights. The last is never read: it refuses the drafter.
_OF_DRAFTERS = ("calibration.json", "provenance.json", "mask_embedding.pt")
# Configuration, tokenizer and calibration files that public checkpoints carry.
_COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    *_OF_DRAFTERS,
)
_INSTALL_HINT = "install it with `pip install 'slipstream[hub]'`, or give a local path"


@dataclass(frozen=True, slots=True)
class _Listing:
    commit: str | None
    files: list[RemoteFile]
    headers: dict[str, str]


class HubSource:
    """A repository `org/name` at a revision; `file` chooses one GGUF file of several.

    The revision is looked up once: what was pulled stays until it is refreshed.
    """

    def __init__(
        self,
        repo: str,
        cache: ModelCache,
        *,
        revision: str = "main",
        file: str | None = None,
        sha256: str | None = None,
        endpoint: str | None = None,
    ) -> None:
        self._repo = repo
        self._cache = cache
        self._revision = revision
        self._file = file
        self._sha256 = sha256
        self._endpoint = endpoint

    @property
    def name(self) -> str:
        """`org/name@revision`, followed by `:FILE` if one was chosen."""
        chosen = f":{self._file}" if self._file else ""
        return f"{self._repo}@{self._revision}{chosen}"

    def resolve(self, progress: Progress, *, refresh: bool = False) -> Path:
        """The folder with the repository's weights, configuration and tokenizer."""
        folder = self._cache.pull(
            self.name, lambda staging: self._fetch(staging, progress), progress, refresh=refresh
        )
        if self._sha256 is not None:
            compare_checksums({single_weights_file(folder): self._sha256})
        return folder

    def _fetch(self, staging: Path, progress: Progress) -> Fetched:
        progress.begin(f"asking the hub for {self.name}", None)
        try:
            listing = self._look_up()
        finally:
            progress.end()
        checksums = Downloader(listing.headers).fetch(listing.files, staging, progress)
        return Fetched(checksums, revision=listing.commit)

    def _look_up(self) -> _Listing:
        try:
            import huggingface_hub
        except ImportError as error:
            raise WeightsError(
                f"{self._repo!r} is a hub id, and the package huggingface_hub is not installed",
                hint=_INSTALL_HINT,
            ) from error
        api = huggingface_hub.HfApi(endpoint=self._endpoint)
        try:
            info = api.model_info(self._repo, revision=self._revision, files_metadata=True)
        except Exception as error:  # its HTTP library, and so its errors, vary by version
            raise self._refusal(error) from error
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
        files = []
        for name in self._choose(list(siblings)):
            url = huggingface_hub.hf_hub_url(
                self._repo, name, revision=info.sha, endpoint=self._endpoint
            )
            lfs = siblings[name].lfs  # small files are kept in git and have no SHA-256
            files.append(RemoteFile(name, url, siblings[name].size, lfs.sha256 if lfs else None))
        token = huggingface_hub.get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return _Listing(info.sha, files, headers)

    def _choose(self, names: list[str]) -> list[str]:
        """The files of a repository that make up one checkpoint."""
        if self._file is not None:
            if self._file not in names:
                raise WeightsError(
                    f"{self.name} does not exist: the repository has no such file",
                    hint=f"it has {', '.join(_weights_among(names)) or 'no weights that are read'}",
                )
            return _with_drafter_files(self._file, names)
        safetensors = [name for name in names if fnmatch(name, "*.safetensors") and "/" not in name]
        if "model.safetensors" in safetensors:
            weights = ["model.safetensors"]
        else:
            weights = [name for name in safetensors if fnmatch(name, "model-*-of-*")] or safetensors
            weights += [name for name in names if name == INDEX_NAME]
        if safetensors:
            return weights + [name for name in _COMPANIONS if name in names]
        ggufs = _weights_among(names)
        if len(ggufs) != 1:
            raise WeightsError(
                f"the hub repository {self._repo} has {len(ggufs)} GGUF files and no safetensors",
                hint=f"choose one, as in {self._repo}:{ggufs[0]}"
                if ggufs
                else "pickled .bin weights are never read; choose another repository",
            )
        return _with_drafter_files(ggufs[0], names)

    def _refusal(self, error: Exception) -> WeightsError:
        """The hub's answer in our words."""
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            return WeightsError(
                f"the hub does not let us see {self.name} (status {status}): it does not exist, "
                "or it is private or gated",
                hint="check the name; for a gated model accept its terms and run `hf auth login`",
            )
        if status == 404:
            return WeightsError(
                f"the hub does not have {self.name}",
                hint="check the name and model.revision; a local path would have to exist",
            )
        if status is not None:
            return WeightsError(f"the hub answers {status} for {self.name}", hint="try again later")
        return WeightsError(
            f"cannot reach the hub for {self.name}: {error}",
            hint="check the connection; without one, use a local path or `default`",
        )


def _with_drafter_files(gguf: str, names: Sequence[str]) -> list[str]:
    folder = PurePosixPath(gguf).parent
    beside = [str(folder / name) for name in _OF_DRAFTERS]
    return [gguf, *(name for name in beside if name in names)]


def _weights_among(names: list[str]) -> list[str]:
    return sorted(name for name in names if fnmatch(name, "*.gguf"))
