package sidecar

import (
	"fmt"
	"strconv"
	"strings"
)

// HotRestart is an Envoy's place in a line of them. The first of a line starts by itself, and each other takes over from its
// predecessor.
type HotRestart struct {
	// Line is the epoch of the line's first proxy.
	Line uint32
	// Epoch is Envoy's own count, from 0 in each line.
	Epoch uint32
	// Version is the protocol's, as Envoy says; "" if it is unknown.
	Version string
}

// String returns what ParseHotRestart reads, such as "3/1/11.104".
func (h HotRestart) String() string { return fmt.Sprintf("%d/%d/%s", h.Line, h.Epoch, h.Version) }

// ParseHotRestart returns nil for a text that String does not write.
func ParseHotRestart(text string) *HotRestart {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) != 3 {
		return nil
	}
	line, errLine := strconv.ParseUint(parts[0], 10, 32)
	epoch, errEpoch := strconv.ParseUint(parts[1], 10, 32)
	if errLine != nil || errEpoch != nil {
		return nil
	}
	return &HotRestart{Line: uint32(line), Epoch: uint32(epoch), Version: parts[2]}
}
