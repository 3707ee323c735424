// The browser that a scenario looks with.
// PROFILE: a fresh folder; CHROMIUM: where it is.
import { chromium } from "playwright-core";

// Complaints of a page about what is `meant` to be are none.
export const start = async (meant) => {
  const browser = await chromium.launchPersistentContext(process.env.PROFILE, {
    executablePath: process.env.CHROMIUM,
    headless: true,
    viewport: { width: 1280, height: 800 },
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  const page = browser.pages()[0] ?? (await browser.newPage());
  page.setDefaultTimeout(20_000);
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error}`));
  // What violates the policy is told on the console as well.
  page.on("console", (message) => message.type() === "error" && !meant?.test(message.text()) && complaints.push(`${page.url()}: ${message.text()}`));
  return { browser, page, complaints };
};
