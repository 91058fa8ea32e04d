package cmdline

import (
	"fmt"
	"io"
	"strings"

	"istio-pod-network-controller/iptables"
)

// PrintLines prints rules in words, chain by chain. With counters, each line begins with what the kernel has counted.
func PrintLines(w io.Writer, lines []iptables.Line, counters bool) error {
	var b strings.Builder
	chain := ""
	for i, l := range lines {
		if i == 0 || l.Chain != chain {
			chain = l.Chain
			fmt.Fprintf(&b, "%s%s\n", chain, titleOf(chain))
			if counters {
				fmt.Fprintf(&b, "%10s %12s\n", "packets", "bytes")
			}
		}
		if counters {
			packets, bytes := l.Counted()
			fmt.Fprintf(&b, "%10s %12s", packets, bytes)
		}
		fmt.Fprintf(&b, "  %s\n", l)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func titleOf(chain string) string {
	if title := iptables.ChainTitle(chain); title != "" {
		return ": " + title
	}
	return ""
}
