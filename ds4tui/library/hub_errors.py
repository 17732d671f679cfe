"""What goes wrong with the hub, each as one sentence with what to do."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast
from urllib.parse import urlsplit

from ds4tui.errors import DownloadError
from ds4tui.library import web
from ds4tui.library.hub_names import HubName

# What the hub says of a token that it does not know.
BAD_TOKEN = "Invalid credentials in Authorization header"


class Unreachable(DownloadError):
    """Nothing answered."""


@contextmanager
def telling_what_went_wrong(wanted: HubName, endpoint: str) -> Iterator[None]:
    """Errors of huggingface_hub as DownloadError, Unreachable if nothing answered. What comes of
    an answer that is none of a hub (it parses what it gets without checking) counts as one."""
    from huggingface_hub import errors

    # The root of its HTTP client's errors: the client is another one from version to version.
    client_error = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
    try:
        yield
    except errors.GatedRepoError as exc:
        raise _gated(wanted.repo, endpoint) from exc
    except errors.RepositoryNotFoundError as exc:
        raise _no_repository(wanted.repo, endpoint) from exc
    except errors.RemoteEntryNotFoundError as exc:
        raise DownloadError(
            f"{wanted.repo} has no file {wanted.file!r}.",
            f"See {endpoint}/{wanted.repo}/tree/main for what it has.",
        ) from exc
    except errors.HfHubHTTPError as exc:
        said = exc.response.headers.get("X-Error-Message", "")
        raise _refused(wanted.repo, endpoint, exc.response.status_code, said) from exc
    except (client_error, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as exc:
        told = web.unreachable(endpoint, _root_of(exc))
        raise Unreachable(told.message, told.hint) from exc
    except (ValueError, TypeError, KeyError, AttributeError, errors.FileMetadataError) as exc:
        raise DownloadError(
            f"{urlsplit(endpoint).hostname} gave no usable answer about {wanted.repo}: "
            f"{' '.join(str(exc).split())[:200]}.",
            "Check the name; if HF_ENDPOINT is set, check that a hub is there.",
        ) from exc


def hub_hints(repo: str, endpoint: str) -> Mapping[int, str]:
    return {
        401: _gated(repo, endpoint).hint,
        403: _gated(repo, endpoint).hint,
        404: "The repository changed meanwhile: run the same command again.",
        407: "The proxy wants a user and password: put them into HTTPS_PROXY.",
        429: "The hub asks for patience: try again in some minutes, or set HF_TOKEN.",
    }


def _root_of(exc: BaseException) -> BaseException:
    while exc.__cause__ or exc.__context__:
        exc = exc.__cause__ or exc.__context__ or exc
    return exc


def _has_token() -> bool:
    from huggingface_hub import get_token

    return bool(os.environ.get("HF_TOKEN") or get_token())


def _gated(repo: str, endpoint: str) -> DownloadError:
    if _has_token():
        hint = f"Accept its terms at {endpoint}/{repo} with the account of your token."
    else:
        hint = (
            f"Accept its terms at {endpoint}/{repo}, make a token at {endpoint}/settings/tokens "
            f"and set HF_TOKEN to it (or run: hf auth login)."
        )
    return DownloadError(f"{repo} is gated: its owner wants to know who fetches it.", hint)


def _no_repository(repo: str, endpoint: str) -> DownloadError:
    if _has_token():
        hint = "Check the name; your token must be allowed to read it if it is private."
    else:
        hint = "Check the name; for a private one set HF_TOKEN (or run: hf auth login)."
    host = urlsplit(endpoint).hostname
    return DownloadError(f"There is no repository {repo} on {host}, or it is private.", hint)


def _refused(repo: str, endpoint: str, status: int, said: str) -> DownloadError:
    if status == 401 and said != BAD_TOKEN:  # so it answers for what does not exist, too
        return _no_repository(repo, endpoint)
    if status == 401:
        return DownloadError(
            f"{urlsplit(endpoint).hostname} does not accept the token.",
            "Check HF_TOKEN, or run: hf auth login",
        )
    hint = hub_hints(repo, endpoint).get(status, "Try again later: run the same command.")
    return DownloadError(f"{endpoint}/{repo} answered {status}.", hint)
