// Fill in the form of examples/web in a real browser, and write what the page shows as JSON.
// node web_page.mjs CHROMIUM URL CELLS, where CELLS is JSON: values, or {"file": PATH}, by input.
import { chromium } from "playwright-core";

const [program, url, cells] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  await page.goto(url);
  await page.waitForSelector("#row[data-ready], #error:not(:empty)");
  for (const [name, value] of Object.entries(JSON.parse(cells))) {
    const cell = page.locator(`[name="${name}"]`);
    await (value.file ? cell.setInputFiles(value.file) : cell.fill(value));
  }
  if (await page.locator("#row[data-ready]").count()) {
    await page.click("button");
    await page.waitForSelector("#prediction td, #error:not(:empty)");
  }
  const found = {};
  for (const line of await page.locator("#prediction tr").all()) {
    const [name, value] = await line.locator("td").allTextContents();
    found[name] = value;
  }
  console.log(JSON.stringify({ found, error: await page.textContent("#error") }));
} finally {
  await browser.close();
}
