// Looks at the console as a person does, in a real browser, and fails when anything is not as it should be.
// BASES: the nodes, separated by commas; TOKEN; TASKS: {"big","cancel","dead"}; PROFILE: a fresh folder; SHOTS: where pictures go, if anywhere.
import assert from "node:assert/strict";
import path from "node:path";
import { start } from "./browser.js";

const bases = process.env.BASES.split(",");
const tasks = JSON.parse(process.env.TASKS);
const shots = process.env.SHOTS;
const { browser, page, complaints } = await start();

const open = async (place, base = bases[0]) => {
  const answer = await page.goto(base + place);
  assert.ok(answer.ok(), `${place}: ${answer.status()}`);
};
const shoot = async (name) => shots && page.screenshot({ path: path.join(shots, `console-${name}.png`) });
const text = () => page.locator("main").innerText();

try {
  // Sign-in leads to where one wanted to go.
  await open("/console/dead");
  assert.match(page.url(), /sign-in/);
  await page.getByLabel("Token").fill(process.env.TOKEN);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForURL("**/console/dead");
  // Another node knows who it is, too.
  for (const base of bases) await open("/console", base);

  // Every page opens, in the dark, in the light and on a phone, and nothing has to be scrolled sideways.
  const places = ["/console", "/console/tasks", `/console/tasks/${tasks.big}`, "/console/dead", "/console/help", `/console/tasks/${tasks.cancel}/cancel`];
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390]]) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: width === 390 ? 844 : 800 });
    for (const place of places) {
      await open(place);
      const [ground, scrolls] = await page.evaluate(() => [
        getComputedStyle(document.body).backgroundColor,
        document.documentElement.scrollWidth - document.documentElement.clientWidth,
      ]);
      assert.equal(scrolls, 0, `${place} is ${scrolls} px too wide at ${width} px`);
      const light = Number(ground.match(/\d+/)[0]) > 127;
      assert.equal(light, scheme === "light", `${place} is ${ground} with ${scheme}`);
      if (place === "/console") await shoot(width === 390 ? "phone" : `overview-${scheme}`);
    }
  }
  await page.setViewportSize({ width: 1280, height: 800 });

  // The switch wins over what the browser prefers.
  await open("/console/help");
  await page.getByRole("button", { name: "auto" }).click();
  await page.waitForLoadState();
  assert.equal(await page.getAttribute("html", "data-theme"), "dark");
  await page.getByRole("button", { name: "dark" }).click();
  await page.getByRole("button", { name: "light" }).click();
  await page.getByRole("button", { name: "auto" }).waitFor();

  // A payload is shown to the last digit.
  await open(`/console/tasks/${tasks.big}`);
  assert.match(await page.locator("#payload").innerText(), /12345678901234567890123/);
  await shoot("task");

  // Keys lead everywhere; search finds the task.
  await page.keyboard.press("g");
  await page.keyboard.press("t");
  await page.waitForURL("**/console/tasks");
  await shoot("tasks");
  await page.keyboard.press("/");
  await page.keyboard.type("to-cancel");
  await page.keyboard.press("Enter");
  await page.waitForURL("**/console/tasks?key=to-cancel");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(`**/console/tasks/${tasks.cancel}`);

  // One is cancelled, after a question.
  await page.getByRole("link", { name: "Cancel…" }).click();
  await page.locator("#confirm").click();
  await page.waitForURL(/said=cancelled$/);
  assert.match(await text(), /nothing is delivered from here on/i);

  // All dead of a group are retried, after their number was shown.
  await open("/console/dead");
  await shoot("dead");
  const group = page.locator("tr", { hasText: "no such mailbox" });
  assert.match(await group.innerText(), new RegExp(String(tasks.dead)));
  await group.getByRole("button").click();
  assert.match(await page.locator("#count").innerText(), new RegExp(`would apply to ${tasks.dead}`));
  await page.locator("#confirm").click();
  assert.match(await page.locator("#result").innerText(), new RegExp(`Applied to ${tasks.dead} of ${tasks.dead}`));

  // What somebody else wrote is text.
  await open("/console/tasks?key=" + encodeURIComponent(tasks.evil));
  assert.match(await text(), /<img src=x/);

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForURL("**/console/sign-in");
  await open("/console");
  assert.match(page.url(), /sign-in/);
  assert.deepEqual(complaints, []);
  console.log("all is well");
} finally {
  await browser.close();
}
