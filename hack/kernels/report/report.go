// Package report has the results of the tests on one kernel.
package report

// Report is the result of the tests of one kernel.
type Report struct {
	Kernel   string  `json:"kernel,omitempty"`
	Release  string  `json:"release"`
	Package  string  `json:"package"`
	Seconds  int     `json:"seconds,omitempty"`
	Backends []Count `json:"backends"`
	// Failed also has packages that did not run to their end, and tests that were skipped without leave.
	Failed  []string `json:"failed,omitempty"`
	Skipped []Skip   `json:"skipped,omitempty"`
}

// Count has the results of the tests that have no parts, and of the parts of the others. A test of two backends counts for both.
type Count struct {
	Backend string `json:"backend"`
	Passed  int    `json:"passed"`
	Failed  int    `json:"failed"`
	Skipped int    `json:"skipped"`
}

// Skip is a test that the kernel is too old for.
type Skip struct {
	Test   string `json:"test"`
	Reason string `json:"reason"`
}
