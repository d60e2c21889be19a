"""Scripts write numbers as the pages do, and draw nodes as equal squares over the whole width."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from queuectl.web import words
from tests.web.browser import open_page

pytestmark = pytest.mark.browser
AMOUNTS = (0, 1, 8, 0.14, 0.004, 15.92, 1.5, 100, 999.999, 1234, 12345.678, 5000000, -3, -1877.7)
SECONDS = (0, 1, 179, 180, 5400, 1843200, 6759720)
COLUMNS = """() => {
  const canvas = document.getElementById("map");
  const at = canvas.getContext("2d").getImageData(0, 30, canvas.width, 1).data;
  const runs = [];
  let run = 0;
  for (let x = 0; x < canvas.width; x++) {
    if (at[4 * x + 3]) run++;
    else if (run) { runs.push(run); run = 0; }
  }
  return { runs, width: canvas.width, used: runs.reduce((sum, one) => sum + one + 1, 0) };
}"""
"""The lengths of the filled runs in one line of pixels, through the first row of nodes."""


async def test_scripts_write_numbers_as_the_pages_do(browser: Browser, address: str):
    page = await open_page(browser, address)
    await page.goto("/ui/whatif")
    shown = await page.evaluate(
        """async ([amounts, seconds]) => {
          const numbers = await import("/ui/static/numbers.js");
          return [amounts.map(numbers.number), seconds.map(numbers.gpuHours)];
        }""",
        [AMOUNTS, SECONDS],
    )
    assert shown == [list(map(words.gpus, AMOUNTS)), list(map(words.as_hours, SECONDS))]


@pytest.mark.parametrize("width", [390, 1000, 1111, 1440])
async def test_nodes_are_equal_squares_over_the_width(browser: Browser, address: str, width: int):
    page = await open_page(browser, address, width=width)
    await page.goto("/ui/nodes")
    await page.wait_for_function("document.getElementById('map').height > 160 || innerWidth > 600")
    await page.wait_for_function("document.querySelectorAll('#map-key li').length > 2")
    drawn = await page.evaluate(COLUMNS)
    assert len(set(drawn["runs"])) == 1, drawn["runs"]
    assert drawn["used"] > 0.75 * drawn["width"]
