/* An equation that is wider than the page is set smaller, down to two thirds. Beyond that, it scrolls in its box. */
(function () {
  "use strict";
  const SMALLEST = 0.66;
  let fitted = 0; // the width of the window, the last time
  function fit() {
    fitted = window.innerWidth;
    for (const box of document.querySelectorAll("div.math")) {
      const formula = box.querySelector("mjx-container");
      if (!formula || !box.clientWidth) continue; // nothing there, or in a closed box
      formula.style.fontSize = "";
      const full = parseFloat(getComputedStyle(formula).fontSize);
      let size = full;
      for (let i = 0; i < 4 && size > SMALLEST * full; i++) { // spaces do not shrink alike
        const drawing = formula.querySelector("svg").getBoundingClientRect();
        const ratio = box.clientWidth / Math.max(formula.scrollWidth, drawing.width);
        if (ratio >= 1) break;
        size = Math.max(SMALLEST * full, 0.98 * ratio * size);
        formula.style.fontSize = `${size}px`;
      }
    }
  }
  window.addEventListener("load", () => window.MathJax?.startup?.promise.then(fit));
  window.addEventListener("resize", () => fitted !== window.innerWidth && fit()); // charts send it, too
  document.addEventListener("click", () => setTimeout(fit)); // a box may have been opened
})();
