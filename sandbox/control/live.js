/* Keeps the upper part of the page fresh without touching the forms below. */
"use strict";

const live = document.getElementById("live");

async function refresh() {
  // Nothing may move while a person is on it, and a hidden page needs nothing.
  if (document.hidden || live.contains(document.activeElement) || live.matches(":hover")) {
    return;
  }
  try {
    const answer = await fetch("/fragment");
    if (answer.ok) {
      const scrolled = [...live.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      live.innerHTML = await answer.text();
      live.querySelectorAll(".scroll").forEach((box, index) => {
        box.scrollLeft = scrolled[index] || 0;
      });
    }
  } catch {
    // The sandbox is restarting; the next tick asks again.
  }
}

setInterval(refresh, 2000);
