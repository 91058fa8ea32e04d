package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// quickStart returns the commands of the page's steps that need a cluster with the agent on it.
func quickStart(t *testing.T) []string {
	t.Helper()
	return pageCommands(t, "quick-start.md", "3.", "Next")
}

// pageCommands returns the commands of a page's sections, from the one whose title begins so to the one before another.
func pageCommands(t *testing.T, name, from, to string) (commands []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/" + name)
	must(t, err)
	_, steps, found := strings.Cut(string(page), "\n## "+from)
	steps, _, ended := strings.Cut(steps, "\n## "+to)
	if !found || !ended {
		t.Fatalf("docs/%s has no section %q, or no %q behind it", name, from, to)
	}
	for _, match := range regexp.MustCompile(`(?m)^ {4}((?:kubectl|[a-z]+=\$\(kubectl) .*)$`).FindAllStringSubmatch(steps, -1) {
		commands = append(commands, match[1])
	}
	return commands
}

// A newcomer types what the quick start says, and sees what it shows.
//
//e2e:rounds nftables
func TestQuickStart(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { cleanUp(t, "namespace", "bookinfo") })
	text := typed(t, quickStart(t))
	if n := len(regexp.MustCompile(`(?m)^(details|productpage)-\S+ +initialized$`).FindAllString(text, -1)); n != 2 {
		t.Errorf("%d pods said initialized:\n%s", n, text)
	}
	peers := regexp.MustCompile(`"peer":"([^"]*):\d+"`).FindAllStringSubmatch(text, -1)
	if len(peers) != 2 || peers[0][1] != "127.0.0.6" || peers[1][1] == "127.0.0.6" {
		t.Errorf("details was asked by %q: want its proxy, and then somebody else:\n%s", peers, text)
	}
	for _, want := range []string{"outbound", "inbound", "condition met", "Warning", "InvalidAnnotation"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// typed runs commands in the tree's root, as a reader of a page would, and returns what they printed.
func typed(t *testing.T, commands []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", strings.Join(commands, "\n"))
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", errors.Join(err, ctx.Err()), out)
	}
	return string(out)
}

// cleanUp deletes objects that may be there.
func cleanUp(t *testing.T, kind string, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	args := append([]string{"delete", kind, "--ignore-not-found", "--wait=false"}, names...)
	if out, err := exec.CommandContext(ctx, "kubectl", args...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
