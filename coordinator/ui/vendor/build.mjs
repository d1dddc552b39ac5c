// Makes ../vendor.js, ../vendor.css and ../vendor-licenses.txt of the packages in package-lock.json. `make ui` calls it.
import { build } from "esbuild";
import { readFileSync, readdirSync, existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const result = await build({
  entryPoints: { vendor: "entry.js" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  legalComments: "none",
  metafile: true,
  outdir: "..",
  define: { "process.env.NODE_ENV": '"production"' },
  charset: "utf8",
});

// The licences of what is in the bundle, which all of them ask to be passed on.
const packages = new Set(
  Object.keys(result.metafile.inputs)
    .filter((path) => path.startsWith("node_modules/"))
    .map((path) => path.split("node_modules/").at(-1).split("/").slice(0, path.includes("node_modules/@") ? 2 : 1).join("/")),
);
const texts = [...packages].sort().map((name) => {
  const directory = join("node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));
  const file = existsSync(directory) && readdirSync(directory).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file ? readFileSync(join(directory, file), "utf8").trim() : `(the package names its licence only: ${license})`;
  return `${name} ${version}\n${"=".repeat(`${name} ${version}`.length)}\n\n${text}\n`;
});
writeFileSync("../vendor-licenses.txt", `Licences of the packages in vendor.js and vendor.css.\n\n${texts.join("\n\n")}`);
