// Answers the two calls Foundry makes of a compiler: --version, and --standard-json from stdin to stdout.
const fs = require("fs");
const root = require.resolve("solc/package.json");

if (process.argv.includes("--version")) {
  const { version } = JSON.parse(fs.readFileSync(root));
  console.log(`solc, the solidity compiler commandline interface\nVersion: ${version}`);
} else {
  process.stdout.write(require("solc").compile(fs.readFileSync(0, "utf8")));
}
