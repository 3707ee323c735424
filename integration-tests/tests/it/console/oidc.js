// Signs in with an identity provider on another site, in a real browser: away, back, on, and out again.
// BASES: the nodes, separated by commas; TASKS: {"who"}; PROFILE: a fresh folder.
import assert from "node:assert/strict";
import { start } from "./browser.js";

const [one, two, three] = process.env.BASES.split(",");
const { who } = JSON.parse(process.env.TASKS);
// A queue that is not there yet is a page with status 404.
const { browser, page, complaints } = await start(/status of 404/);

try {
  // Begun on the first node, back on the second.
  await page.goto(`${one}/console/queues/orders`);
  await page.getByRole("link", { name: "Sign in with localhost" }).click();
  await page.waitForURL(`${two}/console/queues/orders`);
  assert.equal(await page.locator(".caller").innerText(), who);

  // No other site sends the session, and of the sign-in nothing is left.
  const cookies = Object.fromEntries((await browser.cookies()).map((cookie) => [cookie.name, cookie]));
  assert.equal(cookies.duetime_session.sameSite, "Strict");
  assert.equal(cookies.duetime_session.httpOnly, true);
  assert.equal(cookies.duetime_sign_in, undefined);

  // Forms are taken on the third.
  await page.goto(`${three}/console/queues/orders`);
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("button", { name: "Pause" }).click();
  await page.locator("h1", { hasText: "paused" }).waitFor();

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForURL("**/console/sign-in");
  await page.goto(`${one}/console`);
  await page.waitForURL("**/console/sign-in?**");
  assert.deepEqual(complaints, []);
  console.log("all is well");
} finally {
  await browser.close();
}
