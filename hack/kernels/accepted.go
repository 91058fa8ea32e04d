package main

import (
	"regexp"
	"slices"
)

// lack is what some kernels cannot do: tests that need it say the reason and are skipped.
type lack struct {
	kernels []string
	reason  *regexp.Regexp
}

// lacks lists all reasons to skip a test. A test that is skipped for another one counts as failed.
func lacks() []lack {
	return []lack{
		{[]string{"5.10"}, regexp.MustCompile(`no SO_NETNS_COOKIE: it is older than Linux 5\.14$`)},
		{[]string{"5.10"}, regexp.MustCompile(`^set net\.ipv4\.tcp_migrate_req: the kernel ignores it: it is older than Linux 5\.14$`)},
		{[]string{"5.10"}, regexp.MustCompile(`moves no connections from a listener that closes: it is older than Linux 5\.14$`)},
		{[]string{"5.10"}, regexp.MustCompile(`no tables with an owner: it is older than Linux 5\.12$`)},
		{[]string{"5.10"}, regexp.MustCompile(`no egress chains: it is older than Linux 5\.16$`)},
		{[]string{"5.10"}, regexp.MustCompile(`iptables-legacy on the node, too: it is older than Linux 5\.15$`)},
	}
}

func accepted(kernel, reason string) bool {
	return slices.ContainsFunc(lacks(), func(l lack) bool { return slices.Contains(l.kernels, kernel) && l.reason.MatchString(reason) })
}
