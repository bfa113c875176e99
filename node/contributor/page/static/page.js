// Which page this is, by its path.

import { overview } from "./overview.js";
import { keep, path } from "./frame.js";
import { rulesPage } from "./rules.js";
import { submissionPage } from "./submission.js";

const GONE = "the node has ended or does not answer: node status says why, and node page shows this page without it";

const page = { submission: () => submissionPage(path[1]), rules: rulesPage }[path[0]] ?? overview;

keep(page(), GONE);
