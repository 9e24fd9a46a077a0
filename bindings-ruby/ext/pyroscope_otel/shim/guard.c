int pyroscope_x;
