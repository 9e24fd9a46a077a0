// The flame graph: one element a function, drawn from /api/flame, or from /api/diff for two selections. What is zoomed
// into and searched for stands after the # of the address, so it can be shared and Back undoes it.
"use strict";
(() => {
  const graph = document.getElementById("graph");
  if (!graph) return;
  const crumbs = document.getElementById("crumbs");
  const search = document.getElementById("search");
  const matches = document.getElementById("matches");
  const flip = document.getElementById("flip");
  const hovered = document.getElementById("hovered");
  const unit = graph.dataset.unit;
  // What states of time are called, where the page has them.
  const words = new Map([...document.querySelectorAll("[data-state]")].map((one) => [one.dataset.state, one.querySelector(".word").textContent]));
  const ROW = 20; // pixels, frame and gap
  const NARROWEST = 2; // pixels; what is narrower is not drawn
  let sides = []; // total value and numbers of samples of the selection, or of both
  let root = null; // the whole tree
  let zoomed = null; // the frame that fills the width
  let focused = null; // the frame that the Tab key comes to
  let hottest = 1; // the largest own value of all frames, or the largest change

  // Numbers, written as the pages write them (format.rs).
  const three = (value) => (value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0));
  const whole = (value) => Math.floor(value).toLocaleString("en");
  const time = (ns) => {
    if (ns === 0) return "0";
    if (ns < 1e3) return ns + " ns";
    if (ns < 999500) return three(ns / 1e3) + " µs";
    if (ns < 999500000) return three(ns / 1e6) + " ms";
    if (ns < 600e9) return three(ns / 1e9) + " s";
    return ns < 36000e9 ? whole(ns / 60e9) + " min" : whole(ns / 3600e9) + " h";
  };
  const bytes = (value) => {
    if (value < 2 ** 10) return value + " B";
    if (value < 2 ** 20) return three(value / 2 ** 10) + " KiB";
    return value < 2 ** 30 ? three(value / 2 ** 20) + " MiB" : three(value / 2 ** 30) + " GiB";
  };
  const amounts = new Map([["nanoseconds", time], ["bytes", bytes], ["count", whole]]);
  const amount = (value) => (amounts.get(unit) || ((other) => whole(other) + " " + unit))(value);
  const percent = (share) => {
    const value = share * 100;
    return (value === 0 || value >= 9.95 ? value.toFixed(0) : value.toFixed(1)) + " %";
  };
  const share = (value, side) => (sides[side].total > 0 ? value / sides[side].total : 0);
  const errorOf = (part, samples) => (samples > 0 ? Math.sqrt(Math.max(0, part * (1 - part)) / samples) : 0);
  const plusMinus = (error) => "± " + (error * 100 >= 9.95 ? (error * 100).toFixed(0) : (error * 100).toFixed(1));
  const points = (change) => {
    const size = Math.abs(change) * 100;
    return size < 0.05 ? "0" : (change < 0 ? "−" : "+") + (size < 9.95 ? size.toFixed(1) : size.toFixed(0));
  };
  const shareOf = (weight) => (root.weight > 0 ? weight / root.weight : 0);

  const isSure = (frame) => frame.compared !== undefined && frame.compared.sure;

  // Rows become frames with a weight (what their width stands for), their callers and what they called.
  const read = (answer) => {
    const isDiff = "a" in answer;
    sides = isDiff ? [answer.a, answer.b] : [answer];
    const frames = answer.frames.map(([parent, number, line, ...values], row) => {
      const { name, file } = answer.functions[number];
      const totals = values.filter((_, at) => at % 2 === 0);
      const owns = values.filter((_, at) => at % 2 === 1);
      const frame = { name, file, line, totals, owns, weight: totals[0], children: [], depth: 0, index: 0 };
      if (isDiff) {
        frame.weight = (share(totals[0], 0) + share(totals[1], 1)) / 2;
        const [change, error, sure] = answer.compared[row];
        frame.compared = { change, error, sure };
      }
      if (answer.states_of_frames) frame.states = Object.entries(answer.states_of_frames[row]);
      frame.above = parent;
      return frame;
    });
    for (const frame of frames.slice(1)) {
      frame.parent = frames[frame.above];
      frame.index = frame.parent.children.length;
      frame.depth = frame.parent.depth + 1;
      frame.parent.children.push(frame);
      hottest = isDiff ? hottest : Math.max(hottest, frame.owns[0]);
    }
    if (isDiff) hottest = frames.reduce((most, frame) => Math.max(most, isSure(frame) ? Math.abs(frame.compared.change) : 0), 0.01);
    return frames[0];
  };

  const heat = (frame) => {
    if (!frame.compared) return Math.round(70 * Math.sqrt(frame.owns[0] / hottest));
    return isSure(frame) ? Math.round(15 + (65 * Math.abs(frame.compared.change)) / hottest) : 0;
  };

  // The states of a frame as parts of its width.
  const colours = (frame) => {
    let at = 0;
    const parts = frame.states.map(([state, value]) => {
      const start = at;
      at += frame.totals[0] > 0 ? (100 * value) / frame.totals[0] : 0;
      return `var(--frame-${state}) ${start}% ${at}%`;
    });
    return `linear-gradient(to right, ${parts.join(", ")})`;
  };

  const sentence = (what, values, side) => {
    const part = share(values[side], side);
    return what + amount(values[side]) + ", " + percent(part) + " " + plusMinus(errorOf(part, sides[side].equal_samples));
  };
  const title = (frame) => {
    const lines = [frame.name];
    if (frame.file) lines.push(frame.line > 0 ? frame.file + ":" + frame.line : frame.file);
    if (frame.compared) {
      lines.push(sentence("a ", frame.totals, 0), sentence("b ", frame.totals, 1));
      lines.push("change " + points(frame.compared.change) + " " + plusMinus(frame.compared.error) + (isSure(frame) ? "" : ", which may be chance"));
    } else {
      lines.push(sentence("total ", frame.totals, 0), sentence("own ", frame.owns, 0));
    }
    for (const [state, value] of frame.states || []) {
      lines.push(`${words.get(state) || state} ${amount(value)}, ${percent(frame.totals[0] > 0 ? value / frame.totals[0] : 0)} of it`);
    }
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
      element.dataset.total = frame.totals.join(" ");
      element.dataset.self = frame.owns.join(" ");
      element.dataset.share = String(shareOf(frame.weight));
      if (frame.compared) element.classList.add(!isSure(frame) ? "unsure" : frame.compared.change > 0 ? "more" : "less");
      element.style.left = left * 100 + "%";
      element.style.width = share * 100 + "%";
      element.style.setProperty("--heat", String(heat(frame)));
      if (frame.states && frame.states.length > 0 && frame !== root) {
        element.classList.add("stated");
        element.style.backgroundImage = colours(frame);
      }
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
        const part = frame.weight > 0 ? (share * child.weight) / frame.weight : 0;
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
    const totals = sides.map(() => 0);
    const todo = [root];
    while (todo.length > 0) {
      const frame = todo.pop();
      if (isMatch(frame, query)) frame.totals.forEach((value, side) => (totals[side] += value));
      else todo.push(...frame.children);
    }
    const parts = totals.map((total, side) => {
      const part = share(total, side);
      return (sides.length > 1 ? "ab"[side] + " " : "") + percent(part) + " " + plusMinus(errorOf(part, sides[side].equal_samples));
    });
    const found = document.createElement("b");
    found.textContent = parts.join(", ");
    matches.replaceChildren(found, " matches");
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
      .reduce((best, frame) => (best && best.weight >= frame.weight ? best : frame), null);
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

  // What is under the pointer or the focus, in words below the graph; its function in the table, and back.
  const point = (name, file) => {
    for (const row of document.querySelectorAll(".functions tr[data-function]")) {
      row.classList.toggle("pointed", name !== null && row.dataset.function === name && row.dataset.file === file);
    }
  };
  const show = (event) => {
    const element = event.target.closest(".frame");
    hovered.textContent = element ? element.title.replaceAll("\n", " · ") : "";
    point(element ? element.frame.name : null, element ? element.frame.file : null);
  };
  graph.addEventListener("pointerover", show);
  graph.addEventListener("focusin", show);
  graph.addEventListener("pointerleave", () => {
    hovered.textContent = "";
    point(null, null);
  });
  for (const row of document.querySelectorAll(".functions tr[data-function]")) {
    const light = (on) => {
      for (const element of graph.querySelectorAll(".frame")) {
        const { name, file } = element.frame;
        element.classList.toggle("pointed", on && name === row.dataset.function && file === row.dataset.file);
      }
    };
    row.addEventListener("pointerenter", () => light(true));
    row.addEventListener("pointerleave", () => light(false));
  }

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
      root = read(flame);
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
