// Works with queues, schedules, the cluster and bulk operations as a person does, in a real browser.
// BASES: the nodes, separated by commas; TOKEN; TASKS: {"queue","count"}; PROFILE: a fresh folder.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { start } from "./browser.js";

const base = process.env.BASES.split(",")[0];
const tasks = JSON.parse(process.env.TASKS);
// A status that a page is meant to have is no complaint.
const { browser, page, complaints } = await start(/status of (404|422)/);

const open = (place) => page.goto(base + place);
const button = (name) => page.getByRole("main").getByRole("button", { name, exact: true });
const field = (name) => page.locator(`[name="${name}"]`);

try {
  await open("/console/queues");
  await page.getByLabel("Token").fill(process.env.TOKEN);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForURL("**/console/queues");

  // Keys lead to every page.
  for (const [letter, place] of [["s", "schedules"], ["c", "cluster"], ["b", "bulk"], ["q", "queues"]]) {
    await page.keyboard.press("g");
    await page.keyboard.press(letter);
    await page.waitForURL(`**/console/${place}`);
  }

  // A queue is made; what is wrong with it is told where it was typed.
  await field("open").fill("reports");
  await button("Open or create").click();
  await page.waitForURL("**/console/queues/reports");
  await field("settle").selectOption("result");
  await field("max_running").fill("3");
  await button("Save").click();
  assert.match(await page.locator("label", { has: field("max_running") }).innerText(), /needs `placement` = `single`/);
  await field("placement").selectOption("single");
  await button("Save").click();
  await button("Pause").click();
  await page.locator("h1", { hasText: "paused" }).waitFor();
  await button("Resume").click();
  await button("Pause").waitFor();

  // A schedule is made, told in words, and run.
  await open("/console/schedules/nightly");
  await field("queue").fill("reports");
  await field("cron").fill("30 2 * * 1");
  await field("time_zone").fill("Europe/Berlin");
  await field("payload").fill('{"n": 12345678901234567890123}');
  await button("Save").click();
  await page.getByText("At 02:30, on Monday.").waitFor();
  await page.getByText("12345678901234567890123").waitFor();
  await button("Run now").click();
  await page.waitForURL(/\/console\/tasks\/[0-9a-f-]{36}$/);

  // Every shard is owned by the node it is assigned to, or will be: the page is asked again until then.
  for (let tries = 0; ; tries += 1) {
    await open("/console/cluster?shards=all");
    if (await page.getByText("Every shard is owned by the node").isVisible()) break;
    assert.ok(tries < 50, await page.locator("main").innerText());
  }
  const shards = await page.locator(".shards li.settled").count();
  assert.equal(await page.locator("#shards tbody tr").count(), shards);
  assert.ok(shards > 1);

  // A token is made, shown once, and revoked; the audit tells of it.
  await open("/console/tokens");
  await field("name").fill("shop");
  await button("Create").click();
  assert.match(await page.locator("#made").innerText(), /^duetime_/);
  await button("Revoke shop").click();
  await page.getByText("revoked").first().waitFor();
  assert.equal(await page.locator("#made").count(), 0);
  for (let tries = 0; ; tries += 1) {
    await open("/console/audit?what=token.revoke");
    if (await page.getByRole("cell", { name: "shop", exact: true }).isVisible()) break;
    assert.ok(tries < 50, await page.locator("main").innerText());
  }

  // Nothing has to be scrolled sideways, in the dark, in the light and on a phone.
  const places = ["queues", "queues/reports", "queues/reports/delete", "schedules", "schedules/nightly", "schedules/nightly/delete", "cluster", "cluster?shards=all", "bulk?queue=orders", "audit", "tokens"];
  for (const [scheme, width] of [["dark", 1280], ["light", 390]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 844 });
    for (const place of places) {
      await open(`/console/${place}`);
      const scrolls = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(scrolls, 0, `${place} is ${scrolls} px too wide at ${width} px`);
    }
  }
  await page.setViewportSize({ width: 1280, height: 800 });

  // All that match are taken away as a file, and cancelled after their number was shown.
  await open("/console/bulk");
  await page.locator("#filter [name=queue]").fill(tasks.queue);
  await button("Apply").click();
  const [download] = await Promise.all([page.waitForEvent("download"), page.locator("#export").click()]);
  const lines = (await readFile(await download.path(), "utf8")).trim().split("\n");
  assert.deepEqual(JSON.parse(lines.at(-1)), { exported: tasks.count });
  await button("Cancel…").click();
  assert.match(await page.locator("#count").innerText(), new RegExp(`would apply to ${tasks.count}`));
  await page.locator("#confirm").click();
  assert.match(await page.locator("#result").innerText(), new RegExp(`Applied to ${tasks.count} of ${tasks.count}`));

  // The schedule goes, after a question.
  await open("/console/schedules/nightly");
  await page.getByRole("link", { name: "Delete…" }).click();
  await page.locator("#confirm").click();
  await page.waitForURL("**/console/schedules");
  assert.deepEqual(complaints, []);
  console.log("all is well");
} finally {
  await browser.close();
}
