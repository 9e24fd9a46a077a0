// The flame graph: one element a function, drawn from /api/flame. What is zoomed into and searched for stands after
// the # of the address, so it can be shared and Back undoes it.
"use strict";
(() => {
  const graph = document.getElementById("graph");
  if (!graph) return;
  const crumbs = document.getElementById("crumbs");
  const search = document.getElementById("search");
  const matches = document.getElementById("matches");
  const flip = document.getElementById("flip");
  const samples = Number(graph.dataset.samples);
  const unit = graph.dataset.unit;
  const ROW = 20; // pixels, frame and gap
  const NARROWEST = 2; // pixels; what is narrower is not drawn
  let root = null; // the whole tree
  let zoomed = null; // the frame that fills the width
  let focused = null; // the frame that the Tab key comes to
  let hottest = 1; // the largest own value of all frames

  // Numbers, written as the pages write them.
  const three = (value) => (value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0));
  const time = (ns) => {
    if (ns < 1000) return ns + " ns";
    if (ns < 999500) return three(ns / 1e3) + " µs";
    if (ns < 999500000) return three(ns / 1e6) + " ms";
    return three(ns / 1e9) + " s";
  };
  const amount = (value) => (unit === "nanoseconds" ? time(value) : value.toLocaleString("en") + " " + unit);
  const percent = (share) => {
    const value = share * 100;
    return (value === 0 || value >= 9.95 ? value.toFixed(0) : value.toFixed(1)) + " %";
  };
  const plusMinus = (share) => {
    const error = samples > 0 ? Math.sqrt((share * (1 - share)) / samples) * 100 : 0;
    return "± " + (error >= 9.95 ? error.toFixed(0) : error.toFixed(1));
  };
  const shareOf = (value) => (root.total > 0 ? value / root.total : 0);

  // Gives every frame its parent, its place among its siblings and its depth.
  const link = (top) => {
    const todo = [top];
    top.depth = 0;
    while (todo.length > 0) {
      const frame = todo.pop();
      hottest = Math.max(hottest, frame.self);
      frame.children.forEach((child, index) => {
        child.parent = frame;
        child.index = index;
        child.depth = frame.depth + 1;
        todo.push(child);
      });
    }
  };

  const title = (frame) => {
    const share = shareOf(frame.total);
    const lines = [frame.name];
    if (frame.file) lines.push(frame.line > 0 ? frame.file + ":" + frame.line : frame.file);
    lines.push("total " + amount(frame.total) + ", " + percent(share) + " " + plusMinus(share));
    lines.push("own " + amount(frame.self) + ", " + percent(shareOf(frame.self)) + " " + plusMinus(shareOf(frame.self)));
    return lines.join("\n");
  };

  const isMatch = (frame, query) =>
    query !== "" && frame.parent !== undefined &&
    (frame.name.toLowerCase().includes(query) || frame.file.toLowerCase().includes(query));

  const draw = () => {
    const width = graph.clientWidth;
    const query = search.value.trim().toLowerCase();
    const flipped = flip.getAttribute("aria-pressed") === "true";
    const drawn = [];
    const add = (frame, left, share) => {
      const pixels = share * width;
      const element = document.createElement("div");
      element.className = "frame";
      if (pixels < 12) element.classList.add("narrow");
      if (frame.depth < zoomed.depth) element.classList.add("above");
      if (frame === root) element.classList.add("rest");
      if (isMatch(frame, query)) element.classList.add("match");
      element.setAttribute("role", "treeitem");
      element.setAttribute("aria-level", String(frame.depth + 1));
      element.tabIndex = -1;
      element.textContent = frame.name;
      element.title = title(frame);
      element.dataset.function = frame.name;
      element.dataset.file = frame.file;
      element.dataset.total = String(frame.total);
      element.dataset.self = String(frame.self);
      element.dataset.share = String(shareOf(frame.total));
      element.style.left = left * 100 + "%";
      element.style.width = share * 100 + "%";
      element.style.setProperty("--heat", String(Math.round(70 * Math.sqrt(frame.self / hottest))));
      element.frame = frame;
      frame.element = element;
      drawn.push(frame);
    };
    for (let frame = zoomed.parent; frame; frame = frame.parent) add(frame, 0, 1);
    const todo = [[zoomed, 0, 1]];
    while (todo.length > 0) {
      const [frame, left, share] = todo.pop();
      add(frame, left, share);
      let at = left;
      for (const child of frame.children) {
        const part = frame.total > 0 ? (share * child.total) / frame.total : 0;
        if (part * width >= NARROWEST) todo.push([child, at, part]);
        at += part;
      }
    }
    const depth = drawn.reduce((most, frame) => Math.max(most, frame.depth), 0);
    for (const frame of drawn) {
      frame.element.style.top = (flipped ? depth - frame.depth : frame.depth) * ROW + "px";
    }
    const hadFocus = graph.contains(document.activeElement);
    graph.replaceChildren(...drawn.map((frame) => frame.element));
    graph.style.height = (depth + 1) * ROW + "px";
    graph.classList.toggle("searching", query !== "");
    focus(drawn.includes(focused) ? focused : zoomed, hadFocus);
    drawCrumbs();
    drawMatches(query);
  };

  const drawCrumbs = () => {
    const way = [];
    for (let frame = zoomed; frame; frame = frame.parent) way.unshift(frame);
    crumbs.replaceChildren(
      ...way.map((frame) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = frame.name;
        button.addEventListener("click", () => zoom(frame));
        return button;
      }),
    );
  };

  // The share of samples that have a match anywhere in their stack.
  const drawMatches = (query) => {
    for (const row of document.querySelectorAll(".functions tbody tr")) {
      const name = row.querySelector(".function").textContent.toLowerCase();
      row.classList.toggle("chosen", query !== "" && name.includes(query));
    }
    if (query === "") return matches.replaceChildren();
    let total = 0;
    const todo = [root];
    while (todo.length > 0) {
      const frame = todo.pop();
      if (isMatch(frame, query)) total += frame.total;
      else todo.push(...frame.children);
    }
    const share = document.createElement("b");
    share.textContent = percent(shareOf(total)) + " " + plusMinus(shareOf(total));
    matches.replaceChildren(share, " matches");
  };

  // Only one frame is reached by the Tab key; the arrow keys go on from it.
  const focus = (frame, also) => {
    if (focused && focused.element) focused.element.tabIndex = -1;
    focused = frame;
    frame.element.tabIndex = 0;
    if (also) frame.element.focus();
  };

  const pathOf = (frame) => {
    const path = [];
    for (let at = frame; at.parent; at = at.parent) path.unshift(at.index);
    return path.join(".");
  };

  const frameAt = (path) =>
    (path === "" ? [] : path.split(".")).reduce((frame, index) => frame.children[Number(index)] || frame, root);

  const remember = (goes) => {
    const state = new URLSearchParams();
    if (search.value !== "") state.set("q", search.value);
    if (zoomed !== root) state.set("zoom", pathOf(zoomed));
    const hash = state.toString();
    const address = location.pathname + location.search + (hash === "" ? "" : "#" + hash);
    if (goes) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  };

  const recall = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    search.value = state.get("q") || "";
    zoomed = frameAt(state.get("zoom") || "");
    draw();
  };

  const zoom = (frame) => {
    if (frame === zoomed) return;
    zoomed = frame;
    focused = frame;
    remember(true);
    draw();
  };

  const step = (key) => {
    const flipped = flip.getAttribute("aria-pressed") === "true";
    const siblings = focused.parent ? focused.parent.children.filter((frame) => frame.element && frame.element.isConnected) : [];
    const place = siblings.indexOf(focused);
    const widest = focused.children
      .filter((frame) => frame.element && frame.element.isConnected)
      .reduce((best, frame) => (best && best.total >= frame.total ? best : frame), null);
    switch (key) {
      case "ArrowDown": return flipped ? focused.parent : widest;
      case "ArrowUp": return flipped ? widest : focused.parent;
      case "ArrowLeft": return siblings[place - 1];
      case "ArrowRight": return siblings[place + 1];
      default: return undefined;
    }
  };

  graph.addEventListener("click", (event) => {
    const element = event.target.closest(".frame");
    if (element) zoom(element.frame);
  });
  graph.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") zoom(focused);
    else if (event.key === "Escape") zoom(zoomed.parent || root);
    else if (event.key.startsWith("Arrow")) {
      const next = step(event.key);
      if (next) focus(next, true);
    } else return;
    event.preventDefault();
  });
  search.addEventListener("input", () => {
    if (!root) return;
    remember(false);
    draw();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !root) return;
    search.value = "";
    remember(false);
    draw();
  });
  flip.addEventListener("click", () => {
    flip.setAttribute("aria-pressed", String(flip.getAttribute("aria-pressed") !== "true"));
    if (root) draw();
  });
  addEventListener("popstate", () => root && recall());

  const say = (sentence) => {
    const line = document.createElement("p");
    line.className = "state";
    line.textContent = sentence;
    graph.replaceChildren(line);
  };
  fetch(graph.dataset.source)
    .then((response) => response.json())
    .then((flame) => {
      if (flame.error) return say(flame.error);
      root = flame.root;
      link(root);
      recall();
      let width = graph.clientWidth;
      new ResizeObserver(() => {
        if (graph.clientWidth === width) return;
        width = graph.clientWidth;
        draw();
      }).observe(graph);
      graph.dataset.ready = "";
    })
    .catch((error) => say("The flame graph could not be loaded: " + error.message + "."));
})();
