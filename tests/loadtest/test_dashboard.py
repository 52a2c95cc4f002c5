"""The load test's dashboard: all places are opened and told, a place that is refused fails the run."""

from __future__ import annotations

from fairq.server.web.dashboard.pages import PAGES
from loadtest.dashboard import Sizes, places


def test_every_page_of_the_dashboard_is_among_the_places() -> None:
    opened = [path.partition("?")[0] for path in places(Sizes()).values()]
    missing = {(prefix, page.gather) for page in PAGES for prefix in ("", "/live") if page.is_live or not prefix}
    for page in PAGES:  # some have a second path, for names that a path cannot have
        for prefix in ("", "/live"):
            if any(_fits(path.split("/"), (prefix + page.path).split("/")) for path in opened):
                missing.discard((prefix, page.gather))
    assert not missing


def _fits(path: list[str], wanted: list[str]) -> bool:
    rest = wanted and wanted[-1].endswith(":path}")
    if len(path) != len(wanted) and not (rest and len(path) > len(wanted)):
        return False
    return all(want.startswith("{") or part == want for part, want in zip(path, wanted, strict=False))
