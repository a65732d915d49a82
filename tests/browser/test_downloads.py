"""What a reader takes away, opened and checked: recipe, checkpoints, report, tables, pictures."""

import io
import json

import pandas as pd
import pytest
from playwright.sync_api import expect
from safetensors import safe_open

import hydra_core as hc
from hydra_core.heads.mask import HeadMask, Plan

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FULL = HeadMask.full((8,) * 6)
PLAN = Plan((FULL.prune(5, 0), FULL.prune(4, 3)))


def saved(page, name):
    """Path of what a download button saves, and the name that it suggests.

    Of download buttons only: "Help for A recipe file" is a button too, and there first on a slow machine.
    """
    button = page.get_by_test_id("stDownloadButton").filter(has_text=name).get_by_role("button").first
    expect(button).to_be_enabled(timeout=120_000)
    with page.expect_download() as download:
        button.click()
    return download.value.path(), download.value.suggested_filename


def test_recipe_checkpoints_and_report_are_those_of_the_plan(visit, chromium):
    page = visit(f"/export?plan={PLAN.text}", accept_downloads=True)
    path, name = saved(page, "Recipe")
    assert name == "recipe.json"
    assert Plan.from_json(json.loads(path.read_text())["plan"]) == PLAN
    path, name = saved(page, "Fused ensemble")
    assert name == "hydra.safetensors"
    assert hc.load_hydra(path, hc.load_model("demo/fashion-vit")).plan == PLAN
    path, name = saved(page, "Member A alone")
    with safe_open(path, "pt") as file:
        assert len(list(file.keys())) > 10
    page.get_by_text("Measure on the whole test split").click()
    path, name = saved(page, "Report")
    assert name == "hydra-report.html"
    reader = chromium.new_context(offline=True).new_page()  # nothing but the file
    asked = []
    reader.on("request", lambda request: asked.append(request.url))
    reader.set_content(path.read_text())
    expect(reader.locator(".js-plotly-plot .main-svg").nth(2)).to_be_attached()
    expect(reader.get_by_text("47 of 48 heads kept").first).to_be_visible()
    assert [url for url in asked if url.startswith("http")] == []
    reader.context.close()
    assert page.errors == []


def test_tables_are_saved_as_csv_and_markdown_and_pictures_as_png(visit):
    page = visit("/compare", accept_downloads=True)
    path, name = saved(page, "All figures as CSV")
    table = pd.read_csv(io.StringIO(path.read_text()))
    assert name == "comparison.csv"
    assert len(table) > 10
    path, name = saved(page, "Markdown")
    assert path.read_text().startswith("|")
    plot = page.locator(".js-plotly-plot").first
    plot.scroll_into_view_if_needed()
    plot.hover()
    with page.expect_download() as picture:
        plot.locator(".modebar-btn[data-title*='Download']").click()
    assert picture.value.suggested_filename == "pareto.png"
    assert picture.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert page.errors == []


def test_the_link_to_copy_holds_the_controls_and_every_choice_of_a_list(visit):
    page = visit("/cost?batch=8&batch=128&precision=bf16")
    expect(page.get_by_role("heading", name="Latency on this machine")).to_be_visible(timeout=120_000)
    page.get_by_role("button", name="Copy link").click()
    link = page.locator("[data-testid=stCode]").filter(has_text="http")
    expect(link).to_contain_text("batch=8&batch=128")
    expect(link).to_contain_text("precision=bf16")


def test_a_recipe_that_was_saved_is_opened_by_a_click_with_its_model_data_and_plan(visit, tmp_path):
    page = visit(f"/export?plan={PLAN.text}", accept_downloads=True)
    path, _ = saved(page, "Recipe")
    text = json.loads(path.read_text())
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(text | {"model": "demo/fashion-vit-s1", "data": "demo/fashion"}))
    other = visit("/export")
    other.get_by_test_id("stFileUploader").locator("input[type=file]").set_input_files(file)
    other.get_by_role("button", name="Open it").click()
    expect(other.get_by_test_id("stToast")).to_contain_text("The recipe is open")
    expect(other.get_by_text("demo/fashion-vit-s1 on demo/fashion, 2 members, 2 heads pruned in all.")).to_be_visible()
    other.wait_for_function("plan => location.search.includes(`plan=${plan}`)", arg=PLAN.text)
    assert "model=demo%2Ffashion-vit-s1" in other.url
    assert other.errors == []
