package nri

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
)

// stubLog has the stub's lines in the agent's log, which is JSON.
type stubLog struct{ log logr.Logger }

// Debugf is left out: it has a line for every call.
func (stubLog) Debugf(context.Context, string, ...any) {}

// Infof tells what the stub does.
func (l stubLog) Infof(_ context.Context, format string, args ...any) {
	l.log.V(1).Info("NRI stub", "message", fmt.Sprintf(format, args...))
}

// Warnf tells what it does not expect.
func (l stubLog) Warnf(_ context.Context, format string, args ...any) {
	l.log.Info("NRI stub warned", "message", fmt.Sprintf(format, args...))
}

// Errorf tells what it cannot do.
func (l stubLog) Errorf(_ context.Context, format string, args ...any) {
	l.log.Error(fmt.Errorf(format, args...), "NRI stub failed")
}
