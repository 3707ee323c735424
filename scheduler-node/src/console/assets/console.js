// Keys, and what is nicer with a script. Every page works without it.
"use strict";
(() => {
  const typing = (at) => at.closest("input, select, textarea") !== null;
  const rows = () => [...document.querySelectorAll("tr[data-row]")];
  let going = false;

  // Moves the mark to the next or the previous row.
  const step = (by) => {
    const all = rows();
    if (all.length === 0) return;
    const at = all.findIndex((row) => row.classList.contains("marked"));
    const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    all.forEach((row) => row.classList.toggle("marked", row === next));
    next.scrollIntoView({ block: "nearest" });
  };
  const marked = () => document.querySelector("tr[data-row].marked");

  const keys = {
    "/": () => document.getElementById("find")?.focus(),
    "?": () => document.querySelector("a[data-help]")?.click(),
    j: () => step(1),
    k: () => step(-1),
    x: () => marked()?.querySelector("input[type=checkbox]")?.click(),
    Enter: () => marked()?.querySelector("a")?.click(),
    g: () => { going = true; },
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return document.activeElement?.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const place = going && document.querySelector(`a[data-go="${CSS.escape(event.key)}"]`);
    const act = place ? () => place.click() : keys[event.key];
    going = false;
    if (!act) return;
    event.preventDefault();
    act();
  });

  // A second click does not send a form again while its answer is awaited, which comes within 30 s. A page to which the browser goes back may send its forms again.
  const sent = new Map();
  document.addEventListener("submit", (event) => {
    if (event.target.getAttribute("method") !== "post") return;
    if (event.timeStamp - sent.get(event.target) < 35_000) return event.preventDefault();
    sent.set(event.target, event.timeStamp);
  });
  addEventListener("pageshow", () => sent.clear());

  // Select all of a page.
  document.querySelectorAll("input[data-all]").forEach((all) => {
    all.hidden = false;
    all.addEventListener("change", () => {
      document.querySelectorAll("tr[data-row] input[type=checkbox]").forEach((box) => { box.checked = all.checked; });
    });
  });

  // Copy what stands beside the button. Over plain HTTP a browser has no clipboard; the text is selected instead.
  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(text);
      }
    });
  });
})();
