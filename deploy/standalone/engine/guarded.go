//go:build !unguarded

package engine

// unguarded is whether this build leaves out TLS and the guard of Temporal. Only
// the benchmark that tells what they cost makes a build without them, which no
// configuration can do.
const unguarded = false
