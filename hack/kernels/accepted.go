package main

import (
	"regexp"
	"slices"
)

// lack is what a kernel cannot do, and the tests that say so and are skipped there.
type lack struct {
	kernels       []string
	tests, reason *regexp.Regexp
}

// lacks lists all that may be skipped. A test that is skipped and is not here counts as failed.
func lacks() []lack {
	return []lack{
		{[]string{"5.10"}, regexp.MustCompile(`.`), regexp.MustCompile(`no SO_NETNS_COOKIE`)},
	}
}

func accepted(kernel, test, reason string) bool {
	return slices.ContainsFunc(lacks(), func(l lack) bool {
		return slices.Contains(l.kernels, kernel) && l.tests.MatchString(test) && l.reason.MatchString(reason)
	})
}
