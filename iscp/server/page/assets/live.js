"use strict";
// Keeps the board as it is in the cluster. Without this script the page is whole, and is reloaded by hand.
(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("live-state");
  if (!live?.dataset.live || !state || !window.EventSource) return;
  let stream = null;

  const inUse = () => {
    const active = document.activeElement;
    return (active && live.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName))
      || String(window.getSelection()).length > 0;
  };

  const show = (html) => {
    if (inUse()) return;
    const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...live.querySelectorAll("details[open]")].map((each) => each.id);
    const seen = [...live.querySelectorAll("[data-scroll]")].map((each) => [each.id, each.scrollLeft, each.scrollTop]);
    live.innerHTML = html;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const [id, left, top] of seen) document.getElementById(id)?.scrollTo(left, top);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const close = (words) => {
    stream?.close();
    stream = null;
    state.textContent = words;
  };

  const open = () => {
    if (stream || document.hidden) return;
    stream = new EventSource(live.dataset.live);
    stream.addEventListener("board", (event) => { state.textContent = "live"; show(JSON.parse(event.data)); });
    stream.addEventListener("fault", (event) => { state.textContent = JSON.parse(event.data); });
    stream.addEventListener("gone", () => { close("logged out"); window.location.reload(); });
    stream.addEventListener("error", () => {
      if (stream?.readyState === EventSource.CLOSED) close("not live: reload the page to see the newest state");
      else state.textContent = "connecting";
    });
  };

  // A browser opens few connections to one host: hidden pages leave theirs to others.
  document.addEventListener("visibilitychange", () => (document.hidden ? close("") : open()));
  open();
})();
