// Prints the first hit of the built documentation's own search for each query, as JSON.
//   node first_hits.js HTML_FOLDER QUERY...
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, ...queries] = process.argv.slice(2);
// What the scripts of a page expect of a browser.
const element = { getElementById: () => null, addEventListener: () => {} };
const context = vm.createContext({
  document: element,
  SPHINX_HIGHLIGHT_ENABLED: false,
  _: (text) => text,
  _ready: () => {},
  queries,
  hits: {},
});
context.window = context;
const run = (name) => vm.runInContext(fs.readFileSync(path.join(folder, name), "utf8"), context, { filename: name });
// Each script's names must be seen by the next, as in a page.
run("_static/language_data.js");
run("_static/searchtools.js");
run("searchindex.js");
vm.runInContext(
  `for (const query of queries) {
     const results = Search._performSearch(...Search._parseQuery(query));
     hits[query] = results.length ? results.at(-1)[0] : null;
   }`,
  context,
);
process.stdout.write(JSON.stringify(context.hits));
