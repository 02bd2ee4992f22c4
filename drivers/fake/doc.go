// Package fake is the dummy driver: a scripted park of cards that do not exist, good enough for a laptop, for the tests
// of this project, and for the tests of whoever automates against it.
//
// What the park is comes from the driver's options: how many cards of which types, their parts and handles, how long
// each step takes, which steps fail. What state each card is in, its hardware so to speak, is in one JSON file per
// card, <park_dir>/<PCI address>.json, read anew at every call. So it outlives the agent, may be looked at and changed
// while the agent runs (by hand, or through a Bench), and loses what hardware loses when the host boots: attachments,
// and the images of FPGAs. docs/drivers/fake.md describes options, files, scripts and the image format.
//
// A card is changed in one step, by replacing its file under a lock, after the latency has passed; a programming card is
// empty meanwhile. A process that dies at any point leaves the card before or after that, never between.
//
// This package imports the root package, drivers, mapstructure and the standard library; never Temporal, the database
// or HTTP.
package fake
