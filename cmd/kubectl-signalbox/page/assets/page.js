// What the page does by itself: it enters by the secret of the link that the command printed, loads the view, loads it
// again when something has changed, and shows times in the viewer's zone.
"use strict";
(() => {
  const view = () => document.getElementById("view");
  const here = () => location.pathname + location.search;
  const key = () => ({ "X-Signalbox-Key": localStorage.getItem("signalbox-key") || "" });

  async function enter() {
    const [, secret] = location.hash.match(/^#enter=(.+)$/) || [];
    if (!secret) return;
    history.replaceState(null, "", here());
    const answer = await fetch("/enter", { method: "POST", body: secret });
    if (!answer.ok) return;
    localStorage.setItem("signalbox-key", await answer.text());
    location.reload();
    await new Promise(() => {}); // until it has
  }

  let last = "", loading = false, again = false;
  async function load() {
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    await htmx.ajax("GET", here(), { target: "#view", swap: "innerHTML" }).catch(() => {});
    loading = false;
    if (again) {
      again = false;
      load();
    }
  }

  // A view isn't replaced while somebody fills in a form of it.
  const busy = () => view().querySelector("[data-still]") || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);

  function listen() {
    const changes = new EventSource("/changes");
    changes.addEventListener("changed", () => busy() || load());
    changes.onopen = () => { // what has changed before is not told
      document.getElementById("lost").hidden = true;
      busy() || load();
    };
    changes.onerror = () => {
      document.getElementById("lost").hidden = false;
      if (changes.readyState === EventSource.CLOSED) setTimeout(listen, 5000); // it was refused
    };
  }

  // A formatter for each form: making one costs more than what it writes.
  const shown = (form) => new Intl.DateTimeFormat([], form);
  const clock = shown({ timeStyle: "short" }), date = shown({ dateStyle: "medium", timeStyle: "short" });
  const full = shown({ dateStyle: "full", timeStyle: "long" });

  function dress() {
    const now = new Date().toDateString();
    for (const time of view().querySelectorAll("time, [data-at]")) {
      const at = new Date(time.dateTime || time.dataset.at);
      time.textContent = (at.toDateString() === now ? clock : date).format(at);
      if (time.dateTime) time.title = full.format(at);
    }
    const title = view().querySelector("[data-title]");
    if (title) document.title = title.dataset.title + " · Signalbox";
    if (title && title.dataset.path) history.replaceState(null, "", title.dataset.path);
  }

  document.addEventListener("htmx:configRequest", (e) => Object.assign(e.detail.headers, key()));
  document.addEventListener("htmx:beforeSwap", (e) => {
    const text = e.detail.xhr.responseText;
    if (e.detail.requestConfig.verb === "get" && text === last) e.detail.shouldSwap = false;
    last = text;
  });
  document.addEventListener("htmx:afterSwap", dress);

  document.addEventListener("click", async (e) => {
    const button = e.target.closest("[data-copy],[data-download]");
    if (!button) return;
    if (button.dataset.copy) {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).value);
      button.textContent = "Copied";
      return;
    }
    const answer = await fetch(button.dataset.download, { headers: key() });
    if (!answer.ok) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = button.dataset.file;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  document.addEventListener("change", async (e) => {
    const into = e.target.dataset && e.target.dataset.into;
    if (into && e.target.files.length) document.getElementById(into).value = await e.target.files[0].text();
  });

  // Dragging a timeline shows another time: by a tenth of what is shown for each tenth of its width.
  let from = null;
  document.addEventListener("pointerdown", (e) => { from = e.target.closest("[data-drag] svg.lane") ? e : null; });
  document.addEventListener("pointerup", (e) => {
    if (!from) return;
    const lane = from.target.closest("svg.lane"), moved = (from.clientX - e.clientX) / lane.getBoundingClientRect().width;
    from = null;
    if (Math.abs(moved) < 0.05) return;
    const query = new URLSearchParams(location.search);
    query.set("shift", (parseFloat(query.get("shift") || "0") + moved).toFixed(2));
    location.search = query.toString();
  });

  for (const link of document.querySelectorAll("nav a")) {
    const path = link.getAttribute("href");
    if (path === location.pathname || path !== "/" && location.pathname.startsWith(path + "/")) {
      link.setAttribute("aria-current", "page");
    }
  }
  enter().finally(() => {
    if ("entry" in view().dataset) return;
    load().finally(listen);
  });
})();
