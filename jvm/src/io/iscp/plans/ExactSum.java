/*
 * Copyright the iscp authors.
 *
 * Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except
 * in compliance with the License. You may obtain a copy of the License at
 *
 *     http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software distributed under the License
 * is distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express
 * or implied. See the License for the specific language governing permissions and limitations under
 * the License.
 */
package io.iscp.plans;

import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.Arrays;

/**
 * A sum of doubles, and of products of them, without an error: it is the same in whichever order they are added.
 *
 * <p>It is held as doubles that do not overlap, mostly one to three of them (Shewchuk, "Adaptive precision floating-point
 * arithmetic", 1997), and is rounded once, as Python's `fsum` does. What is too large or too small for that is added as
 * a decimal number.
 */
final class ExactSum {
    /** So many values below it can be added up without coming to infinity on the way. */
    private static final double LARGE = 0x1p960;

    /** Between the two, products of four have no part beyond what a double can hold. */
    private static final double FACTOR_LEAST = 0x1p-120;

    private static final double FACTOR_MOST = 0x1p120;

    private double[] parts = new double[2];
    private int size;
    private BigDecimal rest = BigDecimal.ZERO;

    /** A finite value. */
    void add(double value) {
        if (Math.abs(value) < LARGE) {
            grow(value);
        } else {
            rest = rest.add(new BigDecimal(value));
        }
    }

    void add(ExactSum other) {
        for (int place = 0; place < other.size; place++) {
            add(other.parts[place]);
        }
        rest = rest.add(other.rest);
    }

    /** A finite value to the power of 2, 3 or 4. */
    void addPower(double value, int power) {
        if (!isFactor(value)) {
            rest = rest.add(new BigDecimal(value).pow(power));
            return;
        }
        double square = value * value;
        double error = Math.fma(value, value, -square);
        if (power == 2) {
            add(square);
            add(error);
        } else if (power == 3) {
            addFactors(square, value);
            addFactors(error, value);
        } else {
            addFactors(square, square);
            addFactors(2 * square, error);
            addFactors(error, error);
        }
    }

    /** Two finite values multiplied. */
    void addProduct(double one, double other) {
        if (isFactor(one) && isFactor(other)) {
            addFactors(one, other);
        } else {
            rest = rest.add(new BigDecimal(one).multiply(new BigDecimal(other)));
        }
    }

    private static boolean isFactor(double value) {
        double size = Math.abs(value);
        return size == 0 || (size >= FACTOR_LEAST && size <= FACTOR_MOST);
    }

    private void addFactors(double one, double other) {
        double product = one * other;
        add(product);
        add(Math.fma(one, other, -product));
    }

    private void grow(double value) {
        double sum = value;
        int kept = 0;
        for (int place = 0; place < size; place++) {
            double part = parts[place];
            double above = sum + part;
            double back = above - sum;
            double below = (sum - (above - back)) + (part - back);
            if (below != 0) {
                parts[kept++] = below;
            }
            sum = above;
        }
        if (sum != 0) {
            if (kept == parts.length) {
                parts = Arrays.copyOf(parts, 2 * kept);
            }
            parts[kept++] = sum;
        }
        size = kept;
    }

    BigDecimal exact() {
        BigDecimal found = rest;
        for (int place = 0; place < size; place++) {
            found = found.add(new BigDecimal(parts[place]));
        }
        return found;
    }

    /** The nearest double, of two that are as near the even one; infinity, where it is beyond all of them. */
    double rounded() {
        return rest.signum() == 0 ? roundedParts() : exact().doubleValue();
    }

    private double roundedParts() {
        if (size == 0) {
            return 0;
        }
        int place = size - 1;
        double sum = parts[place];
        double below = 0;
        while (place > 0 && below == 0) {
            double part = parts[--place];
            double above = sum + part;
            below = part - (above - sum);
            sum = above;
        }
        boolean further = place > 0 && Math.signum(below) == Math.signum(parts[place - 1]);
        if (below != 0 && further) { // what lies below says on which side of the middle between two doubles it is
            double twice = 2 * below;
            double next = sum + twice;
            return next - sum == twice ? next : sum;
        }
        return sum;
    }

    void write(DataOutput out) throws IOException {
        out.writeInt(size);
        for (int place = 0; place < size; place++) {
            out.writeDouble(parts[place]);
        }
        byte[] digits = rest.signum() == 0 ? new byte[0] : rest.unscaledValue().toByteArray();
        out.writeInt(digits.length);
        if (digits.length > 0) {
            out.write(digits);
            out.writeInt(rest.scale());
        }
    }

    static ExactSum read(DataInput in) throws IOException {
        ExactSum found = new ExactSum();
        found.size = in.readInt();
        found.parts = new double[Math.max(2, found.size)];
        for (int place = 0; place < found.size; place++) {
            found.parts[place] = in.readDouble();
        }
        byte[] digits = new byte[in.readInt()];
        if (digits.length > 0) {
            in.readFully(digits);
            found.rest = new BigDecimal(new BigInteger(digits), in.readInt());
        }
        return found;
    }
}
