// Which page this is, by its path.

import { detail } from "./detail.js";
import { keep, path } from "./frame.js";
import { overview } from "./overview.js";

keep(path.length ? detail(path) : overview());
