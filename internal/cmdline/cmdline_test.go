package cmdline

import (
	"bytes"
	"errors"
	"testing"
)

func TestRun_errors_haveTheirExitCodes(t *testing.T) {
	some := errors.New("some")
	for err, want := range map[error]struct {
		code int
		said string
	}{
		nil:           {0, ""},
		some:          {ExitError, "error: some\n"},
		ExitCode(7):   {7, ""},
		Unasked(some): {ExitUnasked, "error: some\n"},
	} {
		var errOut bytes.Buffer
		if got := codeOf(err, &errOut); got != want.code || errOut.String() != want.said {
			t.Errorf("%v: code %d, %q, want %d, %q", err, got, errOut.String(), want.code, want.said)
		}
	}
}
