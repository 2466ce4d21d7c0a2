package mr

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/register"
)

// FromEnv opens the backend that the environment asks for. If there is none, b is nil, and absent says why:
// UBCOLL_IB=off, or auto and no device could be used. With on the latter is err. With auto log is told, unless the
// reason is that there is no device. Malformed variables are err in any case. keep is [Config.Keep].
func FromEnv(log *slog.Logger, keep func(register.Memory)) (b *Backend, absent, err error) {
	when, err1 := env.IB.Get()
	config, err2 := ConfigFromEnv()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	if when == "off" {
		return nil, fmt.Errorf("%s=off: %w", env.IB.Name, hw.ErrNotSupported), nil
	}
	config.Keep, config.Log = keep, log
	b, err = Open(config)
	switch {
	case err == nil:
		return b, nil, nil
	case when == "on":
		return nil, nil, fmt.Errorf("%s=on: %w", env.IB.Name, err)
	case !errors.Is(err, hw.ErrNotSupported):
		log.Warn("ubcoll: the RDMA devices are not used", "error", err)
	}
	return nil, err, nil
}

// ConfigFromEnv returns which devices the environment selects, and how they register.
func ConfigFromEnv() (Config, error) {
	devices, err1 := env.IBDevices.Get()
	relaxed, err2 := env.IBRelaxed.Get()
	sel, err := verbs.ParseSelection(devices)
	if err != nil {
		err = fmt.Errorf("%s: %w", env.IBDevices.Name, err)
	}
	return Config{Select: sel, Relaxed: relaxed != 0}, errors.Join(err1, err2, err)
}
