"""The pages in the order of the menu. To add one: write pages/NAME.py, add a line here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class PageEntry:
    """One page: its file stem (also its address), title, Material icon and the one question it answers."""

    name: str
    title: str
    icon: str
    question: str

    @property
    def path(self) -> Path:
        return ROOT / "pages" / f"{self.name}.py"


PAGES: tuple[PageEntry, ...] = (
    PageEntry("start", "Start", "home", "What is this, and which model and data shall we look at?"),
    PageEntry("your_data", "Your data", "upload_file", "How does it look on my own data?"),
    PageEntry("heads", "Heads", "grid_on", "Which heads matter, and do the criteria agree?"),
    PageEntry("projections", "Projections", "bubble_chart", "Do known and unknown samples separate in a head?"),
    PageEntry("what_if", "What if", "tune", "What happens to calibration and OOD detection when these heads go?"),
    PageEntry("zero_shot", "Zero-shot", "translate", "What do the words do to a zero-shot model?"),
    PageEntry("compare", "Compare", "leaderboard", "Which method gives the best uncertainty for its cost?"),
    PageEntry("sweep", "Sweep", "ssid_chart", "How many heads can go, and how many members pay?"),
    PageEntry("noise", "Noise", "blur_on", "Does pruning help when the data are noisy?"),
    PageEntry("cost", "Cost", "speed", "What does this plan cost beside one model and a deep ensemble?"),
    PageEntry("export", "Export", "download", "How do I take this setting away?"),
    PageEntry("learn", "Learn", "school", "How does it work, step by step, and what do the words mean?"),
)


def page(name: str) -> PageEntry:
    """The entry of a page by its name (its file's stem)."""
    return next(entry for entry in PAGES if entry.name == name)
