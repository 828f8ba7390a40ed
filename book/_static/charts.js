/* Draw Altair's stock HTML output with the site's own Vega, in the colours of the page.
 *
 * Altair's output fetches vega, vega-lite and vega-embed from a CDN unless VEGA_DEBUG says that they
 * are loaded, and then calls the global vegaEmbed(). This script, loaded in <head>, answers both: it
 * declares the versions as loaded, and queues the calls until the (deferred) bundle is there.
 */
(function () {
  "use strict";
  const bundle = new Promise((resolve) =>
    document.addEventListener("vega-bundle", (event) => resolve(event.detail), { once: true })
  );
  const theme = window.vegaTheme; // transformer_annotated.charts.page, which draws the reports of runs
  const merge = (a, b = {}) => {
    const out = { ...a };
    for (const [key, value] of Object.entries(b)) {
      out[key] = a[key] && typeof a[key] === "object" && typeof value === "object" ? merge(a[key], value) : value;
    }
    return out;
  };
  window.VEGA_DEBUG = window.VEGA_DEBUG || {};
  for (const [library, version] of Object.entries(window.vegaVersions)) {
    window.VEGA_DEBUG[library + "_version"] = version;
  }
  const actions = { export: true, source: false, compiled: false, editor: false };
  // Charts as wide as their container listen to the window alone: tell them of every other change of layout.
  const watcher = new ResizeObserver(() => requestAnimationFrame(() => window.dispatchEvent(new Event("resize"))));
  window.vegaEmbed = async (element, spec, options = {}) => {
    const embed = await bundle;
    const settings = { actions, ...options, renderer: "svg", config: merge(theme, options.config) };
    const result = await embed(element, spec, settings);
    const box = typeof element === "string" ? document.querySelector(element) : element;
    const caption = box.closest("figure")?.querySelector(".caption-text");
    const names = { "svg.marks": caption?.textContent, "details > summary": "Save this chart" };
    for (const [part, name] of Object.entries(names)) {
      if (name) box.querySelector(part)?.setAttribute("aria-label", name.trim());
    }
    for (const bind of box.querySelectorAll(".vega-bind")) {
      const control = bind.querySelector("select, input");
      const name = bind.querySelector(".vega-bind-name")?.textContent.trim();
      control?.setAttribute("aria-label", name || control.name);
    }
    watcher.observe(box);
    return result;
  };
})();
