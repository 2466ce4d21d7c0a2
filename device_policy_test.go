package ubcoll_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll"
	"github.com/ubcoll/ubcoll/bootstrap"
	"github.com/ubcoll/ubcoll/coll"
	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/gpu/emulated"
	"github.com/ubcoll/ubcoll/internal/testkit"
	"github.com/ubcoll/ubcoll/internal/testkit/gputest"
	"github.com/ubcoll/ubcoll/p2p"
)

func TestDevicePolicyText(t *testing.T) {
	for word, want := range map[string]ubcoll.DevicePolicy{"auto": ubcoll.DevicesAuto, "off": ubcoll.DevicesOff,
		"required": ubcoll.DevicesRequired} {
		var p ubcoll.DevicePolicy
		require.NoError(t, p.UnmarshalText([]byte(word)))
		require.Equal(t, want, p)
		text, err := p.MarshalText()
		require.NoError(t, err)
		require.Equal(t, word, string(text))
		require.Equal(t, word, p.String())
		require.NoError(t, ubcoll.Options{Devices: p}.Validate())
	}
	var p ubcoll.DevicePolicy
	require.Zero(t, ubcoll.DevicesAuto)
	require.EqualError(t, p.UnmarshalText([]byte("require")), `unknown device policy "require" (one of auto, off, required, `+
		`share): did you mean required?: invalid argument`)
	for _, p := range []ubcoll.DevicePolicy{-1, 4} {
		_, err := p.MarshalText()
		require.ErrorIs(t, err, ubcoll.ErrArgument)
		require.ErrorIs(t, ubcoll.Options{Devices: p}.Validate(), ubcoll.ErrArgument)
		require.Equal(t, fmt.Sprintf("DevicePolicy(%d)", int(p)), p.String())
	}
}

// opened opens a communicator with one rank for each of the options, closes it, and returns each rank's error.
func opened(t *testing.T, options ...ubcoll.Options) []error {
	t.Helper()
	return testkit.Each(bootstrap.Local(len(options)), func(b bootstrap.Bootstrap) error {
		o := options[b.Rank()]
		o.Timeout = testkit.Limit
		c, err := ubcoll.Open(t.Context(), b, o)
		if err != nil {
			return errors.Join(err, b.Close())
		}
		return errors.Join(c.Close(), b.Close())
	})
}

// requireAbout requires an error of Open about a rank, or about the reporting rank itself if about is -1.
func requireAbout(t *testing.T, err, is error, about int, text ...string) {
	t.Helper()
	var e *ubcoll.Error
	require.ErrorIs(t, err, is)
	require.ErrorAs(t, err, &e)
	require.Equal(t, "open", e.Op)
	require.Equal(t, about, e.Peer, "%v", err)
	for _, s := range text {
		require.ErrorContains(t, err, s)
	}
}

func TestDevicesDiffer(t *testing.T) {
	t.Setenv(env.CUDA.Name, "auto")
	for _, err := range opened(t, ubcoll.Options{}, ubcoll.Options{}, ubcoll.Options{Devices: ubcoll.DevicesOff}) {
		requireAbout(t, err, ubcoll.ErrMismatch, 2, "Options.Devices is auto on rank 0 and off on rank 2")
	}
	t.Setenv(env.CUDA.Name, "off") // turns auto into off
	for _, err := range opened(t, ubcoll.Options{}, ubcoll.Options{Devices: ubcoll.DevicesOff}) {
		require.NoError(t, err)
	}
}

// Requiring devices while the environment has them off is an error.
func TestDevicesRequiredOff(t *testing.T) {
	t.Setenv(env.CUDA.Name, "off")
	o := ubcoll.Options{Devices: ubcoll.DevicesRequired}
	for r, err := range opened(t, o, o) {
		requireAbout(t, err, ubcoll.ErrNotSupported, -1,
			fmt.Sprintf("rank %d uses no device, and Options.Devices is required: UBCOLL_CUDA is off", r))
	}
}

// TestDevicesRequired opens communicators on a machine with four devices.
func TestDevicesRequired(t *testing.T) {
	emulated.Only(t)
	gputest.Enough(t, 4)
	t.Setenv(env.CUDA.Name, "auto")
	o := ubcoll.Options{Devices: ubcoll.DevicesRequired}
	for _, err := range opened(t, o, o, o, o) {
		require.NoError(t, err)
	}
	for r, err := range opened(t, o, o, o, o, o) {
		requireAbout(t, err, ubcoll.ErrNotSupported, -1, fmt.Sprintf("rank %d uses no device", r), "5 ranks and 4 CUDA devices")
	}
	for call, want := range map[string]error{"cuDevicePrimaryCtxRetain": ubcoll.ErrNotSupported, "cuMemCreate": ubcoll.ErrLimit,
		"cuMemImportFromShareableHandle": ubcoll.ErrNotSupported} {
		t.Run(call, func(t *testing.T) {
			t.Setenv("UBCOLL_EMULATE_FAIL", call+":1")
			errs := opened(t, o, o)
			var own, other *ubcoll.Error
			require.ErrorAs(t, errs[0], &own)
			require.ErrorAs(t, errs[1], &other)
			failed := 0
			if own.Peer >= 0 {
				own, other, failed = other, own, 1
			}
			text := fmt.Sprintf("rank %d uses no device, and Options.Devices is required: ", failed)
			requireAbout(t, own, want, -1, text)
			requireAbout(t, other, want, failed, text)
		})
	}
}

// TestDevicesRequiredSplit makes the device part of a new communicator fail: all ranks return the error, and c stays
// usable.
func TestDevicesRequiredSplit(t *testing.T) {
	emulated.Only(t)
	t.Setenv("UBCOLL_EMULATE_FAIL", "")
	gputest.Run(t, 3, ubcoll.Options{Devices: ubcoll.DevicesRequired}, func(ctx context.Context, c *ubcoll.Comm, _ ubcoll.Device) error {
		for _, k := range []struct {
			call string
			want error
		}{{"cuMemCreate", ubcoll.ErrLimit}, {"cuEventCreate", ubcoll.ErrNotSupported}} {
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 0 {
				os.Setenv("UBCOLL_EMULATE_FAIL", k.call+":1")
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			_, err := c.Split(ctx, c.Rank()/2, 0)
			if !errors.Is(err, k.want) || !strings.Contains(err.Error(), "Options.Devices is required") {
				return fmt.Errorf("rank %d, %s: %v", c.Rank(), k.call, err)
			}
			if err := coll.Barrier(ctx, c); err != nil {
				return err
			}
			os.Setenv("UBCOLL_EMULATE_FAIL", "")
		}
		d, err := c.Dup(ctx)
		if err != nil {
			return err
		}
		_, err = d.GPU()
		return errors.Join(err, d.Close())
	})
}

// TestDevicesOff asks for devices that the machine has but the options turn off.
func TestDevicesOff(t *testing.T) {
	gputest.Run(t, 2, ubcoll.Options{}, func(ctx context.Context, with *ubcoll.Comm, dev ubcoll.Device) error {
		v, err := ubcoll.Alloc[float32](with, dev, 100)
		if err != nil {
			return err
		}
		s, err := ubcoll.NewStream(dev)
		if err != nil {
			return err
		}
		o := ubcoll.Options{Devices: ubcoll.DevicesOff, Timeout: testkit.Limit}
		err = ubcoll.Local(ctx, 2, o, func(ctx context.Context, c *ubcoll.Comm) error {
			peer := 1 - c.Rank()
			_, gpu := c.GPU()
			_, alloc := ubcoll.Alloc[int8](c, dev, 1)
			_, adopt := ubcoll.Adopt(c, dev, unsafe.Pointer(&peer), 4096)
			_, recv := p2p.Recv(ctx, c, peer, v.Vec())
			var errs []error
			for what, err := range map[string]error{"GPU": gpu, "Alloc": alloc, "Adopt": adopt, "Recv": recv,
				"Send": p2p.Send(ctx, c, peer, v.Vec()), "On": coll.Barrier(ctx, c.On(s))} {
				if !errors.Is(err, ubcoll.ErrNotSupported) || !strings.Contains(err.Error(), "Options.Devices is off") {
					errs = append(errs, fmt.Errorf("%s: %v", what, err))
				}
			}
			err := coll.AllReduce(ctx, c, v.Vec(), v.Vec(), ubcoll.Sum)
			if !errors.Is(err, ubcoll.ErrNotSupported) || !strings.Contains(err.Error(), "Options.Devices is off") {
				errs = append(errs, fmt.Errorf("AllReduce: %v", err))
			}
			x := []int32{1}
			errs = append(errs, coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum))
			if n := c.Stats().Memory.DeviceBytes; n != 0 {
				errs = append(errs, fmt.Errorf("%d bytes of device memory", n))
			}
			return errors.Join(errs...)
		})
		return errors.Join(err, s.Close(), v.Free())
	})
}

// TestDevicesOffDriver checks whether a process has loaded the driver.
func TestDevicesOffDriver(t *testing.T) {
	testkit.RunChild(t, "driver", env.CUDA.Name+"=auto")
}

func childDriver() error {
	for _, p := range []ubcoll.DevicePolicy{ubcoll.DevicesOff, ubcoll.DevicesAuto} {
		var gpu error
		err := ubcoll.Local(context.Background(), 2, ubcoll.Options{Devices: p}, func(ctx context.Context, c *ubcoll.Comm) error {
			if _, err := c.GPU(); c.Rank() == 0 {
				gpu = err
			}
			x := []int32{1}
			return coll.AllReduce(ctx, c, ubcoll.Of(x), ubcoll.Of(x), ubcoll.Sum)
		})
		if err != nil {
			return err
		}
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			return err
		}
		loaded := strings.Contains(string(maps), "libcuda.so")
		switch {
		case p == ubcoll.DevicesOff && loaded:
			return errors.New("the driver is loaded")
		case p == ubcoll.DevicesAuto && gpu == nil && !loaded:
			return errors.New("there are devices and no driver: this test does not find it")
		}
	}
	return nil
}
