// The trainer's page has one view.

import { keep } from "./frame.js";
import { overview } from "./overview.js";

keep(overview(), "the trainer has ended or does not answer: murmur trainer status says why, and murmur trainer page shows this page without it");
