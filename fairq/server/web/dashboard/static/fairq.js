// What htmx does not do: the dialog, keys, notes, chosen rows, the chart.
(() => {
  "use strict";
  const $ = (what, from = document) => from.querySelector(what);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const NOTE_MS = 6000;
  const FOLLOW_MS = 3000; // before a stream is asked for again
  const SHORTEST_S = 10; // that the chart shows

  // ---- the dialog: whatever is loaded into it opens it; a change that was made closes it and shows a note
  const dialog = $("#dialog");
  document.addEventListener("htmx:after:swap", () => {
    const done = $("#dialog-body [data-done]");
    if (done) {
      note($(".message", done).textContent);
      dialog.close();
    } else if ($("#dialog-body").children.length && !dialog.open) {
      dialog.showModal();
    }
    draw();
  });
  dialog.addEventListener("close", () => $("#dialog-body").replaceChildren());
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-close]") || event.target === dialog) dialog.close();
  });

  // ---- a button whose request got no answer says so, in its dialog if that is open
  document.addEventListener("htmx:error", (event) => {
    const source = event.detail.ctx?.sourceElement;
    if (!source || source.id === "live") return; // the stream has its own bar
    if (!dialog.open) return note("The server does not answer.");
    const line = $("#dialog-body .unanswered") ?? document.createElement("p");
    line.className = "alert bad unanswered";
    line.setAttribute("role", "alert");
    line.textContent = "The server did not answer. It may have been done: look before you try again.";
    $("#dialog-body .buttons").before(line);
  });

  function note(text) {
    const line = document.createElement("p");
    line.textContent = text;
    $("#notes").append(line);
    if (!text.includes("fq_")) setTimeout(() => line.remove(), NOTE_MS); // a new token stays until the page is left
    while ($("#notes").children.length > 4) $("#notes").firstChild.remove();
  }

  // ---- choices that show another page at once, and rows that are chosen
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.submit();
    const letters = event.target.closest("#letters");
    if (!letters) return;
    if (event.target.matches("[data-all]")) {
      for (const box of letters.querySelectorAll("[name=ids]")) box.checked = event.target.checked;
    }
    const any = $("[name=ids]:checked", letters) !== null;
    for (const button of letters.querySelectorAll("[data-chosen]")) button.disabled = !any;
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chosen]");
    if (!button) return;
    const ids = [...button.form.querySelectorAll("[name=ids]:checked")].map((box) => box.value);
    const values = { queue: button.dataset.queue, ids: ids.join("\n") };
    htmx.ajax("POST", `/ask/${button.dataset.chosen}`, { target: "#dialog-body", values });
  });

  // ---- keys: g and a letter for a page, / for the search
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      $(".search [type=search]")?.focus();
    } else if (isGoing && /^[a-z]$/.test(event.key)) {
      $(`.places [data-key="${event.key}"]`)?.click();
    }
    isGoing = event.key === "g";
  });

  // ---- on a phone the places scroll: show the one that this is
  $(".places [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // ---- the stream: say so when it brings nothing
  const bar = $("#trouble");
  const say = (text) => {
    bar.textContent = text;
    bar.hidden = !text;
  };
  document.addEventListener("trouble", (event) => say(event.detail.data));
  document.addEventListener("left", () => location.reload());
  document.addEventListener("htmx:sse:after:message", (event) => {
    if (event.detail.message.event !== "trouble") say("");
  });
  const UNANSWERED = "The server does not answer; what is shown may be old.";
  document.addEventListener("htmx:sse:error", () => say(UNANSWERED));

  // the extension connects again only where a stream had begun: until one has, ask for it here
  const live = $("#live");
  let isFollowed = false;
  document.addEventListener("htmx:sse:before:connection", () => (isFollowed = true));
  document.addEventListener("htmx:sse:close", () => (isFollowed = false));
  document.addEventListener("htmx:finally:request", (event) => {
    const ctx = event.detail.ctx;
    if (ctx.sourceElement !== live || isFollowed) return;
    say(ctx.response?.status >= 400 ? `What is shown may be old: ${reasonIn(ctx.text)}` : UNANSWERED);
    setTimeout(follow, FOLLOW_MS);
  });
  function follow() {
    if (document.hidden) document.addEventListener("visibilitychange", follow, { once: true });
    else htmx.ajax("GET", live.getAttribute("hx-sse:connect"), { source: live });
  }
  function reasonIn(text) {
    try {
      return JSON.parse(text).detail;
    } catch {
      return "the server refuses to tell what happens";
    }
  }

  // ---- the chart: a solid line for what a tenant was given, a dashed one for its due with its free time
  let chart = null;
  let shown = "";
  let marks = [];
  function draw() {
    const data = $("#chart-data");
    const place = $("#chart");
    if (!data || !place || !data.dataset.chart) return;
    const shares = JSON.parse(data.dataset.chart);
    if (shares.times_s.length < 2) return; // a line has two ends
    const columns = [shares.times_s, ...shares.series.flatMap((each) => [each.delivered, each.fair])];
    const names = shares.series.map((each) => each.tenant).join("\n") + matchMedia("(prefers-color-scheme: dark)").matches;
    marks = shares.marks;
    if (chart && shown === names) {
      chart.setData(columns);
      return;
    }
    chart?.destroy();
    shown = names;
    const lines = shares.series.flatMap(({ tenant, color }) => {
      const line = { label: tenant || "others", stroke: css(tenant ? `--c${color}` : "--muted"), points: { show: false } };
      return [{ ...line, width: 2 }, { ...line, width: 1.25, dash: [5, 4] }];
    });
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    chart = new uPlot(
      {
        width: place.clientWidth,
        height: place.clientHeight,
        padding: [8, 86, 0, 0], // the names stand at the right
        legend: { show: false },
        series: [{}, ...lines],
        scales: { x: { range: (_, low, high) => (low == null ? [null, null] : [Math.min(low, high - SHORTEST_S), high]) }, y: { range: (_, low, high) => [0, Math.min(1, Math.max(0.1, high * 1.1))] } },
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
        axes: [{ ...axis, space: 70, size: 34, values: (_, ticks, i, space, step) => ticks.map((at) => clock(at, step)) }, { ...axis, size: 52, values: (_, ticks) => ticks.map((at) => `${Math.round(at * 100)}%`) }],
        hooks: { draw: [drawNames, drawMarks] },
      },
      columns,
      place,
    );
  }
  const clock = (at, step) => {
    const text = new Date(at * 1000).toISOString();
    return step < 60 ? text.slice(11, 19) : step < 86400 ? text.slice(11, 16) : text.slice(5, 10);
  };
  // the tenants' names at the end of their lines, moved apart where they would cover each other
  function drawNames(plot) {
    const { ctx, bbox } = plot;
    const ends = [];
    for (let i = 1; i < plot.series.length; i += 2) {
      const values = plot.data[i];
      const last = values.findLast((value) => value != null);
      if (last != null) ends.push({ name: plot.series[i].label, color: plot.series[i].stroke(), y: plot.valToPos(last, "y", true) });
    }
    const step = 14 * devicePixelRatio;
    ends.sort((a, b) => a.y - b.y);
    for (let i = 1; i < ends.length; i++) ends[i].y = Math.max(ends[i].y, ends[i - 1].y + step);
    for (let i = ends.length - 1, low = bbox.top + bbox.height; i >= 0; i--, low -= step) ends[i].y = Math.min(ends[i].y, low);
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const each of ends) {
      ctx.fillStyle = each.color;
      const name = each.name.length > 12 ? `${each.name.slice(0, 11)}…` : each.name;
      ctx.fillText(name, bbox.left + bbox.width + 6 * devicePixelRatio, each.y);
    }
    ctx.restore();
  }
  function drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = css("--text");
    ctx.fillStyle = css("--text");
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    for (const mark of marks) {
      const x = plot.valToPos(mark.at_s, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
      ctx.fillText(` ${mark.text} `, x, bbox.top + 12 * devicePixelRatio);
    }
    ctx.restore();
  }
  addEventListener("resize", () => {
    const place = $("#chart");
    if (chart && place) chart.setSize({ width: place.clientWidth, height: place.clientHeight });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("DOMContentLoaded", draw);
  if (document.readyState !== "loading") draw();
})();
