package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxFile bounds what is read of a file.
const maxFile = 1 << 20

// NodeGatherer looks at the node that it runs on. Root is where the node's files are: / on the node itself.
type NodeGatherer struct {
	Root      string
	NRISocket string
	CNIDir    string
	// Probe returns why the kernel does not take the agent's rules: for ordinary pods, and for pods with mode TPROXY.
	Probe func(ctx context.Context) (ordinary, tproxy error)
	// Rules reports whether a network namespace has rules of ours. nil: namespaces are not looked at.
	Rules func(ctx context.Context, path string) (bool, error)
}

// Gather looks at everything.
func (g NodeGatherer) Gather(ctx context.Context) *NodeFacts {
	f := &NodeFacts{NRISocket: g.NRISocket, CNIDir: g.at(g.CNIDir)}
	f.Nftables, f.TProxy = g.Probe(ctx)
	f.Kernel = strings.TrimSpace(g.text("/proc/sys/kernel/osrelease"))
	f.NRI = g.dial(ctx)
	f.Left = g.left(ctx)
	return f
}

func (g NodeGatherer) at(path string) string { return filepath.Join(g.Root, path) }

// text returns a file's text, or "" if it cannot be read.
func (g NodeGatherer) text(path string) string {
	raw, err := readBounded(g.at(path))
	if err != nil {
		return ""
	}
	return string(raw)
}

func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is no regular file", path))
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = errors.New("the file is too large")
	}
	return text, err
}

// dial connects to the NRI socket and says nothing: the runtime takes that for a plugin that has gone.
func (g NodeGatherer) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", g.at(g.NRISocket))
	if err != nil {
		return err
	}
	return c.Close()
}
