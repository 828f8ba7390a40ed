/* Search: chapters of the road first, then the workshop, then the other pages; glossary, tests and API last. */
var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    const road = /^notebooks\/\d/.test(page) ? 30 : 0;
    const reference = /^book\/(tests|api|ledger)/.test(page) || kind === "object" ? -60 : 0;
    const glossary = /^book\/glossary/.test(page) ? -80 : 0;
    return score + road + reference + glossary;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
