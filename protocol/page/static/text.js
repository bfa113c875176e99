// What people read: numbers with units, amounts, times, addresses, and strangers' words without effect.

const NUMBER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const BIDI_AND_HIDDEN = "\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ufff9-\\ufffb";
const CONTROL = new RegExp(`[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad${BIDI_AND_HIDDEN}]|[\\u{e0000}-\\u{e007f}]|[\\ud800-\\udfff]`, "gu");

export const count = (value) => (value === null || value === undefined ? "–" : NUMBER.format(value));

export function short(value) {
  // 1234567 → 1.23 M
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  for (const [unit, of] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (size >= of) return `${trimmed(value / (unit === "k" ? 1e3 : of))} ${unit}`;
  }
  return size >= 100 || Number.isInteger(value) ? NUMBER.format(value) : trimmed(value);
}

const trimmed = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });

export const decimal = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));

export function percent(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(part === whole || part === 0 ? 0 : 1)} %` : "–";
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, of] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= of) return `${trimmed(value / of)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export function tokens(wei, digits = 3) {
  // Of a decimal text: JavaScript's numbers have too few digits.
  if (wei === null || wei === undefined) return "–";
  const text = wei.padStart(19, "0");
  const whole = BigInt(text.slice(0, -18)), decimals = text.slice(-18), first = decimals.search(/[1-9]/);
  const shown = whole === 0n && first >= digits ? first + 2 : digits; // what is little is not nothing
  const fraction = decimals.slice(0, shown).replace(/0+$/, "");
  return NUMBER.format(whole) + (fraction ? `.${fraction}` : "");
}

export const exact = (wei) => (wei === null || wei === undefined ? "" : `${tokens(wei, 18)} MUR`);

export function seconds(value) {
  if (value < 1) return `${value.toFixed(1)} s`;
  for (const [unit, of] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (value >= 2 * of || (unit === "min" && value >= 100)) return `${Math.floor(value / of)} ${unit}`;
  }
  return `${Math.round(value)} s`;
}

export function ago(value) {
  if (value < -5) return `in ${seconds(-value)}`;
  return value < 5 ? "now" : `${seconds(value)} ago`;
}

export const absolute = (time) => new Date(time * 1000).toISOString().replace("T", " ").replace(".000Z", " UTC");

export const shortened = (text) => (text.length > 15 ? `${text.slice(0, 6)}…${text.slice(-4)}` : text);

export function harmless(text) {
  // Text in pieces: strings, and names of characters that would move, hide or turn what stands around them.
  const pieces = [];
  let from = 0;
  for (const found of text.matchAll(CONTROL)) {
    if (found.index > from) pieces.push(text.slice(from, found.index));
    const code = found[0].codePointAt(0);
    pieces.push({ control: code === 0x1b ? "ESC" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}` });
    from = found.index + found[0].length;
  }
  if (from < text.length) pieces.push(text.slice(from));
  return pieces;
}
