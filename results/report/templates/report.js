"use strict";
// The page of results: the table, the rows chosen to compare, and the chart, which is drawn by Vega.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const names = data.names, isNumber = data.numbers;
  const rows = data.rows.map((row, index) => {
    const [rate, low, high] = row.rate || [null, null, null];
    const command = row.command.map(word => data.words[word]).join(" ");
    return { ...row, index, command, rate, low, high, text: row.cells.join(" ").toLowerCase() };
  });
  const number = text => { const value = parseFloat(text); return Number.isNaN(value) ? null : value; };
  const column = name => names.indexOf(name);
  const byId = id => document.getElementById(id);
  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const option = (value, text) => element("option", { value, textContent: text });
  const rate = column("images/s"), interval = column("95 % interval");
  const label = row => row.cells.filter((cell, at) => cell && data.settings[at]).join(", ");

  // The table.
  const page = 150;
  const table = byId("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells].slice(1, -1);
  const filter = byId("filter"), status = byId("status"), sort = byId("sort"), count = byId("count"), more = byId("more");
  let shown = page, sorted = null, descending = false, found = rows;
  const chosen = new Set();  // indices of rows, in the order of their choice

  const compare = at => (a, b) => {
    const x = a.cells[at], y = b.cells[at];
    if (x === "" || y === "") return (x === "") - (y === "");  // unknown values come last in both orders
    const order = isNumber[at] ? number(x) - number(y) : x.localeCompare(y, undefined, { numeric: true });
    return descending ? -order : order;
  };
  const cell = (text, at) => {
    const td = element("td", { className: isNumber[at] ? "n" : "", textContent: text });
    td.dataset.label = names[at];
    return td;
  };
  const line = row => {
    const box = element("input", { type: "checkbox", className: "choose", checked: chosen.has(row.index), title: "compare" });
    box.dataset.row = row.index;
    box.setAttribute("aria-label", `Compare ${label(row)}`);
    const button = element("button", { type: "button", className: "copy", title: row.command, textContent: "copy" });
    button.dataset.command = row.command;
    const first = element("td", {}, box), last = element("td", {}, button);
    first.dataset.label = "compare";
    last.dataset.label = "command";
    return element("tr", { className: row.failed ? "failed" : "" }, first, ...row.cells.map(cell), last);
  };
  const draw = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = rows.filter(row => words.every(word => row.text.includes(word)) && (!status.value || row.statuses.includes(status.value)));
    if (sorted !== null) found = [...found].sort(compare(sorted));
    body.replaceChildren(...found.slice(0, shown).map(line));
    const all = `${rows.length} row${rows.length === 1 ? "" : "s"}`;
    count.textContent = found.length === rows.length ? all : `${found.length} of ${all}`;
    more.hidden = found.length <= shown;
  };
  const sortBy = at => {
    descending = at !== null && (sorted === at ? !descending : isNumber[at]);
    sorted = at;
    sort.value = at === null ? "" : String(at);
    heads.forEach((head, other) => head.setAttribute("aria-sort", other !== at ? "none" : descending ? "descending" : "ascending"));
    draw();
  };
  heads.forEach((head, at) => head.firstElementChild.addEventListener("click", () => sortBy(at)));
  sort.addEventListener("change", () => sortBy(sort.value === "" ? null : Number(sort.value)));
  const refilter = () => { shown = page; draw(); chart.draw(); };
  filter.addEventListener("input", refilter);
  status.addEventListener("change", refilter);
  more.addEventListener("click", () => { shown += page; draw(); });
  table.addEventListener("click", async event => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    try { await navigator.clipboard.writeText(button.dataset.command); button.textContent = "copied"; }
    catch { window.prompt("The command:", button.dataset.command); }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  table.addEventListener("change", event => {
    if (event.target.matches("input.choose")) choose(Number(event.target.dataset.row), event.target.checked);
  });

  // The rows chosen to compare, side by side: what differs between them, and their rates over that of the first.
  const comparison = byId("comparison");
  const choose = (index, wanted) => {
    if (wanted) chosen.add(index); else chosen.delete(index);
    for (const box of body.querySelectorAll("input.choose")) box.checked = chosen.has(Number(box.dataset.row));
    const picked = [...chosen].map(each => rows[each]);
    byId("chosen").hidden = byId("to-chosen").hidden = !picked.length;
    const differing = names.map((_, at) => at).filter(at => at === rate || new Set(picked.map(row => row.cells[at])).size > 1);
    const cellOf = text => element("td", { className: "n", textContent: text });
    const drop = row => {
      const button = element("button", { type: "button", textContent: "remove" });
      button.setAttribute("aria-label", `Remove ${label(row)}`);
      button.addEventListener("click", () => {
        choose(row.index, false);
        (comparison.querySelector("button") || filter).focus();
      });
      return element("th", { scope: "col" }, element("div", { textContent: label(row) }), button);
    };
    const first = picked.length ? picked[0].rate : null;
    const ratio = row => first && row.rate ? (row.rate / first).toFixed(3) : "";
    const head = text => element("th", { scope: "row", textContent: text });
    comparison.replaceChildren(
      element("thead", {}, element("tr", {}, element("th", { scope: "col", textContent: "row" }), ...picked.map(drop))),
      element("tbody", {},
        ...differing.map(at => element("tr", {}, head(names[at]), ...picked.map(row => cellOf(row.cells[at])))),
        element("tr", {}, head("images/s over that of the first"), ...picked.map(row => cellOf(ratio(row))))),
    );
    chart.mark();
  };
  byId("clear").addEventListener("click", () => { chosen.clear(); choose(-1, false); filter.focus(); });

  // The chart: any column of numbers over any column, a point per row of the filtered table.
  const chart = (() => {
    const section = byId("explore"), canvas = byId("chart"), detail = byId("detail"), tip = byId("tip");
    const axes = { x: byId("x"), y: byId("y") }, colour = byId("colour"), logs = { x: byId("logx"), y: byId("logy") };
    const palette = {{ colours }};
    const mostBars = 400, step = 1.5, reach = 20, mostColours = palette.length - 1, others = "other";
    let view = null, drawings = 0, points = [], order = [], categories = [], focus = null, whole = {}, domain = {};
    if (typeof vegaEmbed === "undefined" || rate < 0 || rows.filter(row => row.rate).length < 2) return { draw: () => {}, mark: () => {} };
    section.hidden = false;
    for (const link of document.querySelectorAll("a[href='#explore']")) link.hidden = false;

    const values = at => new Set(rows.map(row => row.cells[at]).filter(Boolean));
    const varies = name => column(name) >= 0 && values(column(name)).size > 1;
    names.forEach((name, at) => {
      if (at === interval) return;
      axes.x.append(option(at, name));
      if (isNumber[at]) axes.y.append(option(at, name));
      if (data.settings[at] || !isNumber[at]) colour.append(option(at, name));
    });
    const first = (...wanted) => Math.max(0, column(wanted.find(varies)));
    axes.x.value = first("devices", "batch per device", "variable manager", "model");
    axes.y.value = rate;
    const differs = ["machine", "variable manager", "model", "precision", "data", "device"].filter(varies);
    colour.value = first(...differs.filter(name => values(column(name)).size <= palette.length));
    const rates = rows.map(row => row.rate).filter(Boolean).sort((a, b) => a - b);
    logs.y.checked = rates.at(-1) > 100 * rates[0];

    const isLog = name => logs[name].checked && isNumber[axes[name].value];
    const scaled = (name, value) => isLog(name) ? Math.log(value) : value;
    const unscaled = (name, value) => isLog(name) ? Math.exp(value) : value;
    const valueOf = (row, at) => at === rate ? row.rate : isNumber[at] ? number(row.cells[at]) : row.cells[at] || null;
    // The most frequent values of the colours' column; the others share the last colour.
    const coloured = at => {
      const counts = new Map();
      for (const row of rows) counts.set(row.cells[at], (counts.get(row.cells[at]) || 0) + 1);
      const all = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
      return all.length > palette.length ? all.slice(0, mostColours) : all;
    };
    const extent = name => {
      let low = Infinity, high = -Infinity;
      for (const point of points) {
        const ends = [point[name], ...(name === "y" && point.low !== null ? [point.low, point.high] : [])];
        for (const end of ends.filter(end => !isLog(name) || end > 0)) { const value = scaled(name, end); low = Math.min(low, value); high = Math.max(high, value); }
      }
      if (low > high) return [0, 1];
      if (!isLog(name) && low > 0 && low < high / 2) low = 0;
      const room = 0.06 * (high - low) || 0.5 * Math.abs(high) || 1;
      return [low === 0 ? 0 : low - room, high + room];
    };
    const show = () => {
      if (!view) return;
      for (const name of ["x", "y"]) {
        if (!domain[name]) continue;
        view.signal(`${name}min`, unscaled(name, domain[name][0])).signal(`${name}max`, unscaled(name, domain[name][1]));
      }
      view.signal("focus", focus ? focus.index : -1).run();
    };
    // Zooms by a factor around a place, which is given in shares of both axes from the lower left.
    const zoom = (factor, place = { x: 0.5, y: 0.5 }) => {
      for (const name of ["x", "y"]) {
        if (!domain[name]) continue;
        const [low, high] = domain[name], size = (high - low) / factor, fixed = low + place[name] * (high - low);
        domain[name] = [fixed - place[name] * size, fixed + (1 - place[name]) * size];
      }
      show();
    };
    const move = (x, y) => {
      for (const [name, share] of [["x", x], ["y", y]]) {
        if (!domain[name]) continue;
        const shift = share * (domain[name][1] - domain[name][0]);
        domain[name] = domain[name].map(end => end + shift);
      }
      show();
    };
    const reset = () => { domain = { ...whole }; show(); };
    const describe = point => [
      label(point.row), `${names[axes.x.value]}: ${point.row.cells[axes.x.value]}`, `${names[axes.y.value]}: ${point.row.cells[axes.y.value]}`,
      ...(interval >= 0 && Number(axes.y.value) === rate && point.row.cells[interval] ? [`95 % interval: ${point.row.cells[interval]}`] : []),
    ];
    const placeOf = point => Object.fromEntries(["x", "y"].map(name => {
      if (!domain[name]) return [name, 0.5];
      return [name, (scaled(name, point[name]) - domain[name][0]) / (domain[name][1] - domain[name][0])];
    }));
    const go = to => {
      if (!order.length) return;
      focus = order[(to + order.length) % order.length];
      const place = placeOf(focus);
      if (Math.min(place.x, place.y) < 0 || Math.max(place.x, place.y) > 1) move(place.x - 0.5, place.y - 0.5); else show();
      describeFocus();
    };

    const describeFocus = () => {
      const toggle = focus && chosen.has(focus.index) ? "removes it from" : "adds it to";
      detail.textContent = focus ? `${describe(focus).join("; ")}. Enter ${toggle} the comparison.` : "";
    };

    const spec = () => {
      const style = getComputedStyle(document.documentElement);
      const ink = style.getPropertyValue("--ink").trim(), rule = style.getPropertyValue("--line").trim();
      const width = Math.max(240, canvas.clientWidth), narrow = width < 520, columns = narrow ? 1 : 4;
      const colours = coloured(Number(colour.value)), entries = [...new Set(points.map(point => point.c))];
      const height = 320 + 18 * Math.ceil(entries.length / columns) + (isNumber[Number(axes.x.value)] ? 0 : 80);
      const at = { x: Number(axes.x.value), y: Number(axes.y.value), c: Number(colour.value) };
      const scale = name => isNumber[at[name]]
        ? { name, type: isLog(name) ? "log" : "linear", zero: false, domain: [{ signal: `${name}min` }, { signal: `${name}max` }] }
        : { name, type: "point", padding: 0.5, domain: categories };
      const named = (name, title) => ({ scale: name, title, labelOverlap: true, grid: true, labelLimit: 110, labelAngle: isNumber[at[name]] ? 0 : -35, labelAlign: isNumber[at[name]] ? undefined : "right", tickCount: narrow ? 4 : 8, values: few(name), format: few(name) ? "d" : undefined });
      // Few whole numbers, such as those of devices, are the ticks.
      const few = name => {
        const all = [...new Set(points.map(point => point[name]))];
        return isNumber[at[name]] && all.length <= (narrow ? 6 : 12) && all.every(Number.isInteger) ? all : undefined;
      };
      const place = { x: { scale: "x", field: "x" }, y: { scale: "y", field: "y" } };
      const faded = chosen.size ? { signal: "datum.chosen ? 1 : 0.15" } : { value: points.length > 500 ? 0.5 : 0.85 };
      const text = { labelColor: ink, titleColor: ink, gridColor: rule, domainColor: rule, tickColor: rule, labelFontSize: 12, titleFontSize: 13 };
      return {
        width, height, autosize: { type: "fit", contains: "padding", resize: true }, padding: { left: 0, top: 0, right: 5, bottom: 8 },
        signals: [
          ...["x", "y"].flatMap(name => [0, 1].map(end => ({ name: name + ["min", "max"][end], value: domain[name] ? unscaled(name, domain[name][end]) : 0 }))),
          { name: "focus", value: -1 },
        ],
        data: [{ name: "points", values: points }],
        scales: [
          { ...scale("x"), range: "width" }, { ...scale("y"), range: "height" },
          { name: "colour", type: "ordinal", domain: [...colours, others], range: colours.length < palette.length ? [...palette.slice(0, colours.length), palette.at(-1)] : palette },
        ],
        axes: [{ orient: "bottom", ...named("x", names[at.x]) }, { orient: "left", ...named("y", names[at.y]) }],
        legends: [{ fill: "colour", title: names[at.c], orient: "bottom", direction: "horizontal", columns, labelLimit: narrow ? width - 60 : 190, values: [...colours, others].filter(value => entries.includes(value)) }],
        config: { axis: text, legend: text, background: null },
        marks: [{
          type: "group", clip: true, encode: { enter: { width: { signal: "width" }, height: { signal: "height" } } },
          marks: [
            { type: "rule", from: { data: "points" }, encode: { update: {
              x: place.x, y: { scale: "y", field: "low" }, y2: { scale: "y", field: "high" },
              stroke: { scale: "colour", field: "c" }, opacity: [{ test: "datum.low == null", value: 0 }, faded] } } },
            { type: "symbol", name: "symbols", from: { data: "points" }, encode: { update: {
              ...place, fill: { scale: "colour", field: "c" }, opacity: faded, size: { value: points.length > 2000 ? 25 : 60 }, cursor: { value: "pointer" } } } },
            { type: "symbol", interactive: false, from: { data: "points" }, encode: { update: {
              ...place, size: { value: 220 }, stroke: { value: ink }, strokeWidth: { value: 2 },
              opacity: { signal: "datum.index === focus ? 1 : 0" } } } },
          ],
        }],
      };
    };
    const redraw = async ({ keep = false } = {}) => {
      const at = { x: Number(axes.x.value), y: Number(axes.y.value) }, withBars = at.y === rate && interval >= 0 && found.length <= mostBars;
      const colours = new Set(coloured(Number(colour.value)));
      points = found.map(row => {
        const [low, high] = withBars && row.low !== null && row.high !== null ? [row.low, row.high] : [null, null];
        const c = row.cells[Number(colour.value)];
        return { index: row.index, row, x: valueOf(row, at.x), y: valueOf(row, at.y), c: colours.has(c) ? c : others, low, high, chosen: chosen.has(row.index) };
      }).filter(point => ["x", "y"].every(name => point[name] !== null && (!isLog(name) || point[name] > 0)));
      categories = [...new Set(points.map(point => point.x))];
      const rank = new Map(categories.map((value, place) => [value, place]));
      order = [...points].sort((a, b) => (isNumber[at.x] ? a.x - b.x : rank.get(a.x) - rank.get(b.x)) || a.y - b.y);
      points.sort((a, b) => a.chosen - b.chosen);  // chosen ones are on top
      focus = focus && points.find(point => point.index === focus.index) || null;
      whole = Object.fromEntries(["x", "y"].filter(name => isNumber[at[name]]).map(name => [name, extent(name)]));
      if (!keep) domain = { ...whole };
      describeFocus();
      byId("missing").textContent = points.length < found.length ? `${found.length - points.length} row${found.length - points.length === 1 ? " has" : "s have"} no value to draw.` : "";
      const own = ++drawings, made = await vegaEmbed(canvas, spec(), { mode: "vega", renderer: "canvas", actions: false, hover: false, tooltip: false });
      if (own !== drawings) return;  // another drawing has begun meanwhile
      if (view) view.finalize();
      view = canvas.view = made.view;  // on the element for the console, and for tests
      canvas.setAttribute("aria-label", `Chart of ${names[at.y]} over ${names[at.x]}, ${points.length} points`);
      view.addEventListener("mousemove", (event, item) => {
        const point = item && item.mark.name === "symbols" && item.datum;
        tip.hidden = !point;
        if (!point) return;
        tip.replaceChildren(...describe(point).map(text => element("div", { textContent: text })));
        tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4)}px`;
        tip.style.top = `${event.clientY + 12}px`;
      });
      show();
    };

    let from = null, dragged = false, waiting = 0;
    const share = event => {
      const box = canvas.getBoundingClientRect(), [left, top] = view.origin();
      return { x: (event.clientX - box.left - left) / view.signal("width"), y: 1 - (event.clientY - box.top - top) / view.signal("height") };
    };
    canvas.addEventListener("pointerdown", event => { from = share(event); dragged = false; });
    addEventListener("pointerup", () => { from = null; });
    canvas.addEventListener("pointermove", event => {
      if (!from) return;
      const to = share(event);
      if (!dragged && Math.hypot(to.x - from.x, to.y - from.y) < 0.01) return;
      dragged = true;
      move(from.x - to.x, from.y - to.y);
      from = to;
    });
    // The nearest point, since a finger is wider than one.
    canvas.addEventListener("click", event => {
      if (dragged || !view) return;
      const box = canvas.getBoundingClientRect(), [left, top] = view.origin();
      const at = { x: event.clientX - box.left - left, y: event.clientY - box.top - top };
      const distance = point => Math.hypot(view.scale("x")(point.x) - at.x, view.scale("y")(point.y) - at.y);
      const nearest = points.reduce((best, point) => best && distance(best) <= distance(point) ? best : point, null);
      if (!nearest || distance(nearest) > reach) return;
      focus = nearest;
      choose(nearest.index, !chosen.has(nearest.index));
    });
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", reset);
    canvas.addEventListener("wheel", event => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;  // else the page scrolls
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, share(event));
    }, { passive: false });
    canvas.addEventListener("keydown", event => {
      const at = focus ? order.indexOf(focus) : -1;
      const keys = {
        ArrowRight: () => go(at + 1), ArrowLeft: () => go(at < 0 ? -1 : at - 1),
        "+": () => zoom(step, focus ? placeOf(focus) : undefined), "-": () => zoom(1 / step, focus ? placeOf(focus) : undefined), 0: reset,
        Enter: () => { if (focus) { const index = focus.index; choose(index, !chosen.has(index)); go(order.findIndex(point => point.index === index)); } },
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    byId("in").addEventListener("click", () => zoom(step));
    byId("out").addEventListener("click", () => zoom(1 / step));
    byId("reset").addEventListener("click", reset);
    const again = () => redraw({ keep: true });
    for (const control of [axes.x, axes.y, logs.x, logs.y]) control.addEventListener("change", () => redraw());
    colour.addEventListener("change", again);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(again, 150); });
    requestAnimationFrame(() => setTimeout(redraw));  // after the table is on the screen
    return { draw: () => redraw(), mark: again };
  })();
  more.hidden = rows.length <= shown;
  byId("without").remove();  // no noscript: Jenkins and mail programs show the page and block its script
  // A link to a folded section opens it.
  const open = () => { const folded = location.hash && document.querySelector(`${location.hash} > details`); if (folded) folded.open = true; };
  addEventListener("hashchange", open);
  open();
})();
