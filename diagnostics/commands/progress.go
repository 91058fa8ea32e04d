package commands

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// startProgress says on a terminal what takes longer than a second, unless stop is called before.
func startProgress(out io.Writer, what string) (stop func()) {
	if file, ok := out.(*os.File); !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	late := time.AfterFunc(time.Second, func() { _, _ = fmt.Fprintln(out, what, "...") })
	return func() { late.Stop() }
}
