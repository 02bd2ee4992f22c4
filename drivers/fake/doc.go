// Package fake is a driver for cards that do not exist: a scripted park of
// them, good enough for a laptop, for the tests of this project, and for tests
// of anything that is automated against Cyborg.
//
// The options of the driver describe the park: how many cards of which types,
// their parts and handles, how long each step takes, and which steps fail. The
// state of each card, as it were its hardware, is in one JSON file per card,
// <park_dir>/<PCI address>.json, which is read again at every call. So the
// state outlives the agent, and can be read and changed while the agent runs,
// by hand or through a Bench. A card loses what real hardware loses when the
// host boots: attachments, its layout, what is left in registers, and the images of FPGAs.
// docs/drivers/fake.md describes the options, the files, the scripts and the image
// format.
//
// A step changes a card once its latency has passed, by replacing the file
// under a lock. While a card is programmed it is empty, and a scrub or a partition makes
// several changes. A process that dies at any point therefore leaves the card in the
// state before or after such a change, never between.
//
// This package imports the root package, drivers, mapstructure and the standard
// library; never Temporal, the database or HTTP.
package fake
