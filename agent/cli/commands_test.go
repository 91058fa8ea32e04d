package cli

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
)

func TestCompletionForShells(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -o", "zsh": "#compdef", "fish": "complete -c"} {
		code, out, errOut := call(t, "", "completion", shell)
		if code != 0 || !strings.Contains(out, want) || errOut != "" {
			t.Errorf("%s: code %d, %.100q, %s", shell, code, out, errOut)
		}
	}
	if code, out, errOut := call(t, "", "completion", "bsh"); code != cmdline.ExitError || out != "" || !strings.Contains(errOut, "did you mean bash") {
		t.Errorf("no shell: code %d, %.100q, %q", code, out, errOut)
	}
	code, out, _ := call(t, "", "__complete", "sta")
	if code != 0 || !strings.HasPrefix(out, "status\t") {
		t.Errorf("code %d, %q", code, out)
	}
}

func TestAMistypedFlagIsAnErrorWithTheNearest(t *testing.T) {
	for line, want := range map[string]string{
		"run --node-nam=a":     "unknown flag: --node-nam: did you mean --node-name?",
		"run --verify-intervl": "did you mean --verify-interval?",
		"status --nodde":       "did you mean --node?",
		"status --bogus":       "unknown flag: --bogus: see istio-pod-network-controller status --help",
		"status -Z":            "unknown shorthand flag: 'Z'",
		"status --node":        "flag needs an argument: --node",
		"--verion":             "did you mean --version?",
	} {
		code, out, errOut := call(t, "", strings.Fields(line)...)
		if code == 0 || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, %q, want %q", line, code, errOut, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for words, want := range map[[2]string]int{
		{"", ""}: 0, {"abc", "abc"}: 0, {"abc", ""}: 3, {"", "abc"}: 3, {"watch", "wacth"}: 2, {"node", "nodes"}: 1, {"kitten", "sitting"}: 3,
	} {
		if got := intent.Distance(words[0], words[1]); got != want {
			t.Errorf("%v: %d, want %d", words, got, want)
		}
	}
}

// Every subcommand has a section, or a page of its own.
func TestEveryCommandIsDescribed(t *testing.T) {
	page := text(t, filepath.Join(root, "docs", "commands.md"))
	for _, cmd := range Commands().Commands() {
		if cmd.IsAvailableCommand() && !strings.Contains(page, "`"+cmd.Name()) {
			t.Errorf("docs/commands.md does not name %s", cmd.Name())
		}
	}
}

// docs/commands.md lists the exit codes.
func TestExitCodesAreThoseOfTheDocs(t *testing.T) {
	page := text(t, filepath.Join(root, "docs", "commands.md"))
	want := []string{"0", strconv.Itoa(cmdline.ExitError), strconv.Itoa(cmdline.ExitUnasked), strconv.Itoa(cmdline.ExitDrift)}
	if diff := cmp.Diff(want, every("(?m)^\\| ([0-9]+) \\| ", page)); diff != "" {
		t.Errorf("docs/commands.md (-code +docs):\n%s", diff)
	}
}
