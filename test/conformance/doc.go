// Package conformance holds recorded packet behaviour of Istio's own rules, and the tests that make connections to see that
// ours behave the same, on every backend.
//
// testdata/behaviour.tsv has a column for each configuration and a row for each probe; the cell says who must answer:
// PROXY:p the proxy's listener on port p, APP:p the application's, WORLD:7000 left the pod, NOBODY refused or timed out, empty
// does not apply to the pod's address family. testdata/pods has the configurations' Pods, families.txt their addresses.
package conformance
